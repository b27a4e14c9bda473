"""
Serves operators: inspects a running system and repairs it.

What reads or writes Redis raises redis.RedisError, or RedisUnavailable if the server is gone, unless it says otherwise.
"""
