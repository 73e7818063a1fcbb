// At most N calls at a time to somebody else's API, however many processes make them.

import { Client } from "@quorate/client";
import { setTimeout as sleep } from "node:timers/promises";
import { check, unique } from "./demo.js";

const LIMIT = 3; // said by each who asks; all must say the same
const client = new Client();

function callPartner(semaphore: string, request: number): Promise<number> {
  return client.semaphore(semaphore, { limit: LIMIT, waitMs: 30_000, owner: `request-${request}` }, () => partnerApi(request));
}

let [now, most] = [0, 0];
async function partnerApi(request: number): Promise<number> {
  most = Math.max(most, ++now);
  await sleep(100);
  now--;
  return request;
}

const semaphore = unique("partner-api");
const answers = await Promise.all(Array.from({ length: 10 }, (_, request) => callPartner(semaphore, request)));
check(answers.join() === "0,1,2,3,4,5,6,7,8,9", "ten calls, all answered");
check(most > 1 && most <= LIMIT, `never more than ${LIMIT} at a time; at the peak ${most}`);
