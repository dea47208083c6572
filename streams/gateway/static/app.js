// The page: a view for each hash, a login where the gateway has keys.

import { get, post } from '/static/api.js';
import { el } from '/static/dom.js';
import { ask } from '/static/ask.js';
import { failures } from '/static/failures.js';
import { inspect } from '/static/inspect.js';
import { overview } from '/static/overview.js';

const views = { overview, ask, inspect, failures };
const place = document.getElementById('view');
const logout = document.getElementById('logout');
let leave = null, turn = 0;

async function show() {
  const mine = ++turn;
  leave?.();
  leave = null;
  const [name, id] = location.hash.slice(1).split('/');
  const shown = views[name] ? name : 'overview';
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${shown}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  try {
    const session = await get('/session');
    if (mine !== turn) return;
    logout.hidden = !session.logged_in;
    if (session.needed && !session.logged_in) { login(); return; }
    const left = await views[shown](place, id ? decodeURIComponent(id) : undefined);
    if (mine === turn) leave = left ?? null; else left?.();
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401) login();
    else place.replaceChildren(el('p', { role: 'alert', class: 'bad' }, error.message));
  }
}

function login() {
  const key = el('input', { type: 'password', id: 'key', autocomplete: 'current-password', required: true });
  const said = el('p', { role: 'alert', class: 'bad' });
  const enter = async (event) => {
    event.preventDefault();
    try { await post('/session', { key: key.value }); await show(); } catch (error) { said.textContent = error.message; }
  };
  place.replaceChildren(el('h2', {}, 'Log in'), el('form', { onsubmit: enter },
    el('label', { for: 'key' }, 'API key'), key, el('div', { class: 'row' }, el('button', { class: 'main' }, 'Log in'))), said);
  key.focus();
}

logout.addEventListener('click', async () => { await fetch('/session', { method: 'DELETE' }); await show(); });
addEventListener('hashchange', async () => { await show(); place.focus({ preventScroll: true }); });
show();
