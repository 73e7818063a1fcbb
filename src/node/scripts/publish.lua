-- Tells whoever listens that something about these keys has changed. A hint, nothing more.
--
-- KEYS  key × n
-- Reply {1, now}
for _, key in ipairs(KEYS) do redis.call('PUBLISH', key, '') end
return {1, (clock())}
