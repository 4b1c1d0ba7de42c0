-- Counts an event once: its key, the journal of all events, and the ranking.
-- KEYS: the idempotency key, the journal, the ranking. ARGV: member, value.
if not redis.call('SET', KEYS[1], ARGV[1], 'NX') then
  return {0}
end
local id = redis.call('XADD', KEYS[2], '*', 'member', ARGV[1], 'value', ARGV[2], 'key', KEYS[1])
return {1, id, redis.call('ZINCRBY', KEYS[3], ARGV[2], ARGV[1])}
