-- The marker of this node and its clock, and what keeps it from writing: memory, its disk, its role … stop
-- a write of nothing, too, and that costs neither memory nor a change.
--
-- KEYS  marker
-- Reply {1, now, marker or nil, error?}
local now = clock()
local marker = redis.call('GET', KEYS[1])
local written = redis.pcall('SETRANGE', KEYS[1], 0, '')
return {1, now, marker, type(written) == 'table' and written.err or nil}
