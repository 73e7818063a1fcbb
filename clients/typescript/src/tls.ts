// fetch cannot trust another authority or show a certificate. With QUORATE_CA or QUORATE_CLIENT_CERT Node's own
// https module sends the requests.

import { invalid } from "./errors.js";
import { builtin } from "./host.js";
import type { Fetch } from "./servers.js";

/** Files in PEM. */
export interface TlsFiles {
  ca?: string | undefined;
  /** Certificate and key in one file. */
  clientCert?: string | undefined;
}

/** A server closes a connection that was idle for 75 s. */
const IDLE_MS = 60_000;

interface Answer extends AsyncIterable<Uint8Array> {
  statusCode: number;
  headers: Record<string, string | string[] | undefined>;
}
interface Https {
  Agent: new (options: object) => object;
  request(url: string, options: object, answered: (answer: Answer) => void): {
    on(event: "error", failed: (error: Error) => void): void;
    end(body?: string): void;
  };
}

/** A fetch for https URLs; undefined where no file is named. */
export function tlsFetch({ ca, clientCert }: TlsFiles): Fetch | undefined {
  if (ca === undefined && clientCert === undefined) return undefined;
  const files = builtin<{ readFileSync(path: string, encoding: "utf8"): string }>("node:fs");
  const tls = builtin<{ rootCertificates: string[] }>("node:tls");
  const https = builtin<Https>("node:https");
  if (!files || !tls || !https) throw invalid("ca", "needs a platform with files and node:https");
  const read = (field: string, path: string | undefined) => {
    try {
      return path === undefined ? undefined : files.readFileSync(path, "utf8");
    } catch (error) {
      throw invalid(field, `cannot be read: ${(error as Error).message}`);
    }
  };
  const [authority, certificate] = [read("ca", ca), read("clientCert", clientCert)];
  const agent = new https.Agent({
    keepAlive: true,
    timeout: IDLE_MS,
    ...(authority !== undefined && { ca: [...tls.rootCertificates, authority] }),
    ...(certificate !== undefined && { cert: certificate, key: certificate }),
  });
  return (url, { method, headers, body, signal }) => new Promise((resolve, reject) => {
    const request = https.request(url, { method, headers, agent, signal }, (answer) => {
      text(answer).then((content) => resolve({
        ok: answer.statusCode >= 200 && answer.statusCode < 300,
        status: answer.statusCode,
        headers: { get: (name) => String(answer.headers[name] ?? "") || null },
        text: () => Promise.resolve(content),
      }), reject);
    });
    request.on("error", reject);
    request.end(body);
  });
}

async function text(answer: AsyncIterable<Uint8Array>): Promise<string> {
  const decoder = new TextDecoder();
  let content = "";
  for await (const piece of answer) content += decoder.decode(piece, { stream: true });
  return content + decoder.decode();
}
