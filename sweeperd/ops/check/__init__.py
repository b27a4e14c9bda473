"""
Checks that the Redis of each shard lets sweeperd keep its promises, without changing anything.

An ordinary user cannot ask Redis which commands are allowed. So a check runs the command on members that do not exist,
or with an argument that Redis rejects only after it has checked the rights.
"""
