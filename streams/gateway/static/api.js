// The gateway's API, as the page uses it. The session cookie goes along by itself.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { 'content-type': 'application/json', ...options.headers } });
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let message = `HTTP ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not ours: the status says it */ }
  return new Refused(response.status, message);
}

export const get = async (path) => (await call(path)).json();
export const post = async (path, body, options = {}) => (await call(path, { ...options, method: 'POST', body: JSON.stringify(body) })).json();

// Ask, and hand each piece of text to `onText`. Returns the last `uniscale` object; `onId` gets the query's id at once.
export async function ask(body, { onId, onText, signal }) {
  const response = await call('/v1/chat/completions', {
    method: 'POST', body: JSON.stringify({ ...body, stream: true }), signal,
  });
  onId(response.headers.get('x-uniscale-query-id'), response.headers.get('x-uniscale-action'));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '', details = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return details;
    rest += value;
    const events = rest.split('\n\n');
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, '');
      if (data === '[DONE]') continue;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Refused(500, chunk.error.message);
      if (chunk.choices[0]?.delta.content) onText(chunk.choices[0].delta.content);
      if (chunk.uniscale) details = chunk.uniscale;
    }
  }
}
