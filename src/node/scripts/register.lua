-- One step of choosing the next epoch (§4): this node promises a ballot, or accepts a value under it. It does so only
-- as the incarnation that the caller saw: one that lost its memory has forgotten what it promised.
--
-- KEYS  marker, marker of the version before, register: the epoch chosen | promised | accepted at | accepted value
-- ARGV  1 the marker seen   2 the ballot   3 the value, or '' to promise
-- Reply {1, now, accepted at or '', accepted value or ''}; {0, now, the greater ballot}; {-1, 0} another incarnation
local now = clock()
local marker = redis.call('GET', KEYS[1]) or redis.call('GET', KEYS[2])
if marker ~= ARGV[1] then return {-1, 0} end
local chosen, promised, at, value =
  string.match(redis.call('GET', KEYS[3]) or '', '^([^|]*)|([^|]*)|([^|]*)|([^|]*)$')
chosen, promised, at, value = chosen or '', promised or '', at or '', value or ''
if promised > ARGV[2] then return {0, now, promised} end
if ARGV[3] ~= '' then at, value = ARGV[2], ARGV[3] end
redis.call('SET', KEYS[3], table.concat({chosen, ARGV[2], at, value}, '|'))
return {1, now, at, value}
