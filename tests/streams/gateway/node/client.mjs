// OpenAI's official client for Node before the gateway. One scenario a run; it prints what it saw as one line of JSON.
//
//     node client.mjs URL KEY SCENARIO
//
// Every request names its scenario as `user`, so that the test can count its searches in the log.
import OpenAI from "openai";

const [url, apiKey, scenario] = process.argv.slice(2);
const QUESTION = "What is 2 + 3, number 0?";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey });

const request = (more = {}) => ({
  model: "auto",
  messages: [{ role: "user", content: QUESTION }],
  user: scenario,
  ...more,
});

const ask = (more = {}, options = {}) => client.chat.completions.create(request(more), options);

const seen = (made) => ({
  id: made.id,
  model: made.model,
  texts: made.choices.map((choice) => choice.message.content),
  finish: made.choices.map((choice) => choice.finish_reason),
  usage: made.usage,
  uniscale: made.uniscale,
  fingerprint: made.system_fingerprint,
});

// What a failing request throws: its class, and what the class carries.
async function thrown(promise) {
  try {
    await promise;
  } catch (error) {
    return {
      class: Object.getPrototypeOf(error).constructor.name,
      isApiError: error instanceof OpenAI.APIError,
      status: error.status ?? null,
      code: error.code ?? null,
      param: error.param ?? null,
      type: error.type ?? null,
      requestId: error.requestID ?? null,
    };
  }
  return { class: null };
}

const scenarios = {
  async chat() {
    return seen(await ask({ uniscale: { reference: "5", metadata: { team: "a" } } }));
  },

  async stream() {
    const chunks = [];
    for await (const chunk of await ask({
      stream: true,
      stream_options: { include_usage: true },
      uniscale: { progress: true },
    })) {
      chunks.push(chunk);
    }
    const choices = chunks.flatMap((chunk) => chunk.choices);
    return {
      ids: [...new Set(chunks.map((chunk) => chunk.id))],
      text: choices.map((choice) => choice.delta.content ?? "").join(""),
      role: choices[0].delta.role,
      finish: choices.map((choice) => choice.finish_reason).filter((reason) => reason !== null),
      usage: chunks.at(-1).usage,
    };
  },

  async helper() {
    // The client's own reader of streams puts the completion together again.
    const made = await client.chat.completions.stream(request({ stream: true })).finalChatCompletion();
    return seen(made);
  },

  async n() {
    return seen(await ask({ model: "large", n: 2 }));
  },

  async models() {
    const listed = {};
    for await (const model of client.models.list()) listed[model.id] = model.routing;
    const pinned = await client.models.retrieve("large/4/4/2");
    return { listed, pinned: pinned.id, missing: await thrown(client.models.retrieve("larger")) };
  },

  async names() {
    return {
      pinned: seen(await ask({ model: "large/1/1/1" })),
      virtual: seen(await ask({ model: "auto:quality-priority" })),
    };
  },

  async errors() {
    const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "uk-wrong", maxRetries: 0 });
    return {
      value: await thrown(ask({ logprobs: true })),
      type: await thrown(ask({ n: "two" })),
      model: await thrown(ask({ model: "gpt-9" })),
      key: await thrown(stranger.chat.completions.create(request())),
      path: await thrown(client.embeddings.create({ model: "auto", input: "x" })),
      away: await thrown(
        new OpenAI({ baseURL: "http://127.0.0.1:9/v1", apiKey, maxRetries: 0 }).models.list(),
      ),
    };
  },

  async limited() {
    const first = await ask({}, { maxRetries: 0 });
    return { first: first.id, second: await thrown(ask({}, { maxRetries: 0 })) };
  },

  async expired() {
    // Two retries are allowed; the gateway says that they would be in vain.
    return thrown(ask({ uniscale: { timeout_s: 0.001 } }, { maxRetries: 2 }));
  },

  async timeout() {
    // The client gives up each try after a second and repeats the request.
    return seen(await ask({ model: "large/1/1/1" }, { timeout: 1000, maxRetries: 5 }));
  },

  async abort() {
    const controller = new AbortController();
    const asked = thrown(ask({ model: "large/1/1/1" }, { signal: controller.signal }));
    setTimeout(() => controller.abort(), 700);
    return asked;
  },

  async idempotency() {
    const options = { headers: { "Idempotency-Key": "node-1" } };
    const made = await Promise.all([ask({}, options), ask({}, options), ask({}, options)]);
    const other = await thrown(ask({ n: 1 }, options));
    return { ids: [...new Set(made.map((each) => each.id))], other };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
