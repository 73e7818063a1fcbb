-- The marker of this node and its clock.
--
-- KEYS  marker
-- Reply {1, now, marker?}
local now = clock()
return {1, now, redis.call('GET', KEYS[1])}
