// The first page: is there a quorum, which nodes vote, what happens.

import { html, useEffect, useRef, useState } from './vendor/preact-htm.js';
import { get, text } from './api.js';
import { Chart } from './chart.js';
import { count, duration, time } from './format.js';
import { left, useLive, useNow } from './live.js';
import { History } from './metrics.js';
import { Failure, Text } from './parts.js';

/** The state of the quorum in one sentence, and whether a node may be restarted. */
export function verdict({ nodes, quorum, available }) {
  const voting = nodes.filter((n) => n.state === 'voting').length;
  const others = nodes.filter((n) => n.state !== 'voting');
  const names = others.map((n) => `${n.id} is ${n.state}`).join(', ');
  if (!available) {
    return {
      level: 'bad',
      sentence: `No quorum: ${voting} of ${nodes.length} nodes vote, and ${quorum} must. Nothing is granted or extended.`,
      restart: `No: ${names}.`,
    };
  }
  if (!others.length) {
    const spare = nodes.length - quorum;
    return {
      level: 'good',
      sentence: `All ${nodes.length} nodes vote; ${quorum} make a quorum.`,
      restart: spare
        ? `Yes, one at a time: ${count(nodes.length - 1, 'node')} would still vote, and ${quorum} must.`
        : 'No: every node is needed for the quorum.',
    };
  }
  const safe = voting - 1 >= quorum;
  return {
    level: 'warn',
    sentence: `There is a quorum: ${voting} of ${nodes.length} nodes vote, and ${quorum} must. ${names}.`,
    restart: safe
      ? `Yes, one that does not vote, or one of the others: ${voting - 1} would still vote, and ${quorum} must.`
      : `No: without one more voting node there would be no quorum. Wait until ${others[0].id} votes again.`,
  };
}

function Nodes({ value, at }) {
  const now = useNow();
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Nodes"><table>
    <caption>Nodes</caption>
    <thead><tr><th scope="col">Node</th><th scope="col">Address</th><th scope="col">State</th>
      <th scope="col" class="numeric">Latency</th><th scope="col" class="wide">Version</th></tr></thead>
    <tbody>${value.nodes.map((node) => html`<tr key=${node.id}>
      <td>${node.id}</td>
      <td><${Text} value=${node.address} /></td>
      <td><span class=${`state ${node.state}`}>${node.state}</span>
        ${node.voting_in_ms !== undefined && html` votes in ${duration(left(node.voting_in_ms, at, now))}`}
        ${node.reason && html`<div class="quiet"><${Text} value=${node.reason} /></div>`}</td>
      <td class="numeric">${node.latency_ms === undefined ? '' : `${node.latency_ms.toFixed(2)} ms`}</td>
      <td class="wide">${node.redis_version || ''}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

function Charts() {
  const history = useRef(new History());
  const [tick, setTick] = useState(0);
  const { error } = useLive(async (signal) => {
    history.current.add(await text('metrics', signal));
    setTick((n) => n + 1);
  }, 2000, []);
  const h = history.current;
  return html`
    <${Failure} error=${error} />
    <div class="charts">
      <${Chart} title="Acquisitions" unit="a second, by outcome" times=${h.times} names=${h.outcomes}
        columns=${h.acquisitions} tick=${tick} />
      <${Chart} title="Waiting time" unit="ms" times=${h.times} names=${['median', '95th percentile']}
        columns=${h.waiting} tick=${tick} />
      <${Chart} title="Grants after waiting" unit="a second" times=${h.times} names=${['hand-overs']}
        columns=${h.handovers} tick=${tick} />
      <${Chart} title="Answers of the nodes" unit="ms, mean" times=${h.times} names=${h.nodes}
        columns=${h.latencies} tick=${tick} />
    </div>
    <section aria-labelledby="recent"><h2 id="recent">Losses and forced releases</h2>
      ${h.events.length
        ? html`<ul class="events">${h.events.map((e) => html`<li><time>${time(e.at)}</time>
            ${count(e.n, `${e.primitive} lease`)} ${e.said}</li>`)}</ul>`
        : html`<p class="quiet">None at this server since this page was opened.</p>`}
    </section>`;
}

export function Overview({ able }) {
  const nodes = useLive((signal) => get('v1/nodes', {}, signal), 1000, []);
  const members = useLive(
    (signal) => (able.operations.has('listMembers') ? get('v1/members', {}, signal) : undefined), 3000, []);
  const said = nodes.value && verdict(nodes.value);
  useEffect(() => {
    document.title = said?.level === 'bad' ? 'No quorum – Quorate' : 'Quorate';
  }, [said?.level]);
  return html`<h1>Overview</h1>
    <${Failure} error=${nodes.error} />
    ${said && html`
      <p class=${`verdict ${said.level}`} role="status">${said.sentence}</p>
      <dl class="facts">
        <dt>Safe to restart a node?</dt><dd id="restart">${said.restart}</dd>
        ${members.value && html`<dt>Membership</dt>
          <dd>Epoch ${members.value.epoch}, ${count(members.value.members.length, 'member')}${members.value.changing
            ? ', a change is under way' : ''}</dd>`}
      </dl>
      <${Nodes} ...${nodes} />`}
    <${Charts} />`;
}
