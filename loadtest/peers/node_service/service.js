// The small service that is written in Node: fastify and ioredis in front of a sorted set.
//
// `node service.js PORT SOCKET SCRIPT` serves ranks, the top and durable events on the loopback
// until it is terminated. SOCKET: the Unix socket of its Redis. SCRIPT: the file of the script that
// counts an event.

import { readFileSync } from 'node:fs'
import fastify from 'fastify'
import Redis from 'ioredis'

const [port, socket, script] = process.argv.slice(2)
const redis = new Redis({ path: socket, enableAutoPipelining: true })
redis.defineCommand('count', { numberOfKeys: 3, lua: readFileSync(script, 'utf8') })

const entry = {
  type: 'object',
  properties: {
    rank: { type: 'integer' },
    position: { type: 'integer' },
    member: { type: 'string' },
    score: { type: 'integer' }
  }
}
const standing = {
  type: 'object',
  properties: { period: { type: 'string' }, score: { type: 'integer' } }
}
const schemas = {
  member: {
    response: { 200: { type: 'object', properties: { board: { type: 'string' }, entry } } }
  },
  top: {
    querystring: {
      type: 'object',
      properties: { limit: { type: 'integer', minimum: 1, maximum: 1000, default: 10 } }
    },
    response: {
      200: {
        type: 'object',
        properties: { board: { type: 'string' }, entries: { type: 'array', items: entry } }
      }
    }
  },
  submit: {
    body: {
      type: 'object',
      required: ['member', 'value', 'idempotency_key'],
      properties: {
        member: { type: 'string', minLength: 1, maxLength: 128 },
        value: { type: 'integer' },
        idempotency_key: { type: 'string', minLength: 1, maxLength: 128 }
      }
    },
    response: {
      200: {
        type: 'object',
        properties: {
          status: { type: 'string' },
          sequence: { type: 'string' },
          standings: { type: 'array', items: standing }
        }
      }
    }
  }
}

function entryOf (index, member, score) {
  return { rank: index + 1, position: index + 1, member, score: Number(score) }
}

const service = fastify()

const memberPath = '/v1/boards/:board/members/:member'
service.get(memberPath, { schema: schemas.member }, async (request, reply) => {
  const { board, member } = request.params
  const [index, score] = await Promise.all([
    redis.zrevrank(board, member),
    redis.zscore(board, member)
  ])
  if (index === null) return reply.code(404).send({ code: 'member_not_found' })
  return { board, entry: entryOf(index, member, score) }
})

service.get('/v1/boards/:board/top', { schema: schemas.top }, async (request) => {
  const { board } = request.params
  const rows = await redis.zrevrange(board, 0, request.query.limit - 1, 'WITHSCORES')
  const entries = []
  for (let i = 0; i < rows.length; i += 2) entries.push(entryOf(i / 2, rows[i], rows[i + 1]))
  return { board, entries }
})

service.post('/v1/boards/:board/events', { schema: schemas.submit }, async (request) => {
  const { board } = request.params
  const { member, value, idempotency_key: key } = request.body
  const [counted, sequence, score] = await redis.count(
    `${board}:key:${key}`, `${board}:events`, board, member, value
  )
  if (!counted) return { status: 'duplicate' }
  const standings = [{ period: 'all_time', score: Number(score) }]
  return { status: 'applied', sequence, standings }
})

process.once('SIGTERM', () => process.exit(0))
await service.listen({ host: '127.0.0.1', port: Number(port) })
