// The first page: is there a quorum, which nodes vote, what happens.

import { html, useRef, useState } from './vendor/preact-htm.js';
import { get, text } from './api.js';
import { Chart } from './chart.js';
import { count, duration, time } from './format.js';
import { left, useLive, useNow } from './live.js';
import { History } from './metrics.js';
import { Failure, Text } from './parts.js';

/** Who votes: the members by the labels that this server has for them; before there is a deployment, all nodes. */
const voters = ({ nodes }, { members }) =>
  members.length
    ? members.map((m) => ({ state: m.state, id: nodes.find((n) => n.address === m.address)?.id || m.address || m.id }))
    : nodes;

/** The state of the quorum in one sentence, and whether a node may be restarted, and why. */
export function verdict(nodes, members) {
  const all = voters(nodes, members);
  const { quorum, available } = nodes;
  const voting = all.filter((n) => n.state === 'voting').length;
  const others = all.filter((n) => n.state !== 'voting');
  const names = others.map((n) => `${n.id} is ${n.state}`).join(', ');
  const no = (why) => ({ restart: 'No', why });
  const yes = (why) => ({ restart: 'Yes', why });
  if (!available) {
    return {
      level: 'bad',
      sentence: `No quorum: ${voting} of ${all.length} nodes vote, and ${quorum} must. Nothing is granted or extended.`,
      ...no(`: ${names || 'there is no quorum'}.`),
    };
  }
  const left = `${count(voting - 1, 'node')} would still vote, and ${quorum} must.`;
  if (!others.length) {
    return {
      level: 'good',
      sentence: `All ${all.length} nodes vote; ${quorum} make a quorum.`,
      ...(voting - 1 < quorum ? no(': every node is needed for the quorum.')
        : members.changing ? no(`: a change of the members is under way (${members.changing}).`)
          : yes(`, one at a time: ${left} Close it on the page Members first, so that it votes again at once.`)),
    };
  }
  return {
    level: 'warn',
    sentence: `There is a quorum: ${voting} of ${all.length} nodes vote, and ${quorum} must. ${names}.`,
    ...(voting - 1 >= quorum ? yes(`, one that does not vote, or one of the others: ${left}`)
      : no(`: without one more voting node there would be no quorum. Wait until ${others[0].id} votes again.`)),
  };
}

function Nodes({ nodes, at }) {
  const now = useNow();
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Nodes"><table>
    <caption>Nodes</caption>
    <thead><tr><th scope="col">Node</th><th scope="col">Address</th><th scope="col">State</th>
      <th scope="col" class="numeric wide">Latency</th><th scope="col" class="wide">Version</th></tr></thead>
    <tbody>${nodes.map((node) => html`<tr key=${node.id}>
      <td>${node.id}</td>
      <td><${Text} value=${node.address} /></td>
      <td><span class=${`state ${node.state}`}>${node.state}</span>
        ${node.voting_in_ms !== undefined && html` votes in ${duration(left(node.voting_in_ms, at, now))}`}
        ${node.reason && html`<div class="quiet"><${Text} value=${node.reason} /></div>`}</td>
      <td class="numeric wide">${node.latency_ms === undefined ? '' : `${node.latency_ms.toFixed(2)} ms`}</td>
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
      <${Chart} title="Acquisitions" unit="a second, by outcome" times=${h.times} names=${h.outcomes.map((outcome) => outcome.replace('_', ' '))}
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

export function Overview() {
  const live = useLive((signal) => Promise.all([get('v1/nodes', {}, signal), get('v1/members', {}, signal)]), 1000, []);
  const [nodes, members] = live.value || [];
  const said = live.value && !live.error && verdict(nodes, members);
  return html`<h1>Overview</h1>
    <${Failure} error=${live.error} />
    ${said && html`
      <p class=${`verdict ${said.level}`} role="status">${said.sentence}</p>
      <dl class="facts">
        <dt>Safe to restart a node?</dt><dd><strong>${said.restart}</strong>${said.why}</dd>
        <dt>Membership</dt>
        <dd>Epoch ${members.epoch}, ${count(members.members.length, 'member')}${members.changing
          ? `, a change is under way: ${members.changing}` : ''}</dd>
      </dl>`}
    ${nodes && html`<${Nodes} nodes=${nodes.nodes} at=${live.at} />`}
    <${Charts} />`;
}
