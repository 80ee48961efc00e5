// kafkajs.js ROLE NAME BOOTSTRAP SECONDS [TOPIC [RATE [BYTES]]]: what clients.py is, with KafkaJS (NODE_PATH names its folder)
const { Kafka, logLevel } = require('kafkajs')
const [role, name, bootstrap, seconds, topic = 'orders', rate = '4', bytes = '100'] = process.argv.slice(2)
const began = Date.now()
const until = began + 1000 * parseFloat(seconds)
const SLOW_AFTER = 8000
const sleep = ms => new Promise(resolve => setTimeout(resolve, Math.max(0, ms)))
const errors = new Set()
let count = 0
const failed = error => errors.add(String(error.message || error).slice(0, 120))
const retry = { retries: 20, maxRetryTime: 4000 }
const user = process.env.LAB_USER
const sasl = user && { mechanism: 'plain', username: user, password: process.env.LAB_PASSWORD }
const security = { ...(sasl && { sasl }), ...(process.env.LAB_TLS && { ssl: true }) }
const kafka = new Kafka({ ...security, clientId: name, brokers: bootstrap.split(','), logLevel: logLevel.NOTHING, retry })
async function connected (one) {
  for (;;) {
    try { return await one.connect() } catch (error) {
      failed(error)
      if (Date.now() > until) throw error
      await sleep(500)
    }
  }
}
async function produce () {
  const producer = kafka.producer({ allowAutoTopicCreation: false })
  await connected(producer)
  while (Date.now() < until) {
    producer.send({ topic, messages: [{ value: Buffer.alloc(parseInt(bytes)) }] }).then(() => count++, failed)
    await sleep(1000 / parseFloat(rate))
  }
  await Promise.race([producer.disconnect(), sleep(3000)])
}
async function consume () {
  const consumer = kafka.consumer({ groupId: process.env.LAB_GROUP, sessionTimeout: 10000, heartbeatInterval: 1000 })
  await connected(consumer)
  await consumer.subscribe({ topics: [topic] })
  await consumer.run({
    eachMessage: async () => {
      count++
      if (Date.now() > began + SLOW_AFTER) {
        if (role === 'slow') await sleep(500)
        if (role === 'nopoll') await sleep(until - Date.now())
      }
    }
  })
  await sleep(until - Date.now())
  await Promise.race([consumer.disconnect(), sleep(3000)])
}
process.on('unhandledRejection', failed)
const end = () => { console.log(name, count, JSON.stringify([...errors])); process.exit(0) }
;(role === 'produce' ? produce() : consume()).then(end, error => { failed(error); end() })
