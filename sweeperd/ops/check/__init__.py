"""
`sweeperd check`: does the Redis of each shard let sweeperd keep its promises?

A check changes nothing. No command tells an ordinary user whether the user may run a command on a key. So the command
is tried: with an argument that Redis refuses after the check of the rights, or on members that do not exist.
"""
