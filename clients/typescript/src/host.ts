// The parts of Node, Bun and Deno that are used where they exist. A browser has none of them.

interface Process {
  env?: Record<string, string | undefined>;
  execPath?: string;
  platform?: string;
  versions?: Record<string, string | undefined>;
  getBuiltinModule?(name: string): unknown;
  once?(event: "exit", listener: () => void): void;
}

export const host: Process | undefined = (globalThis as { process?: Process }).process;

/** Node itself, not a platform that resembles it. */
export const isNode = host?.versions?.["node"] !== undefined && host.versions["bun"] === undefined && !("Deno" in globalThis);

/** One of Node's modules, without an import that other platforms would stumble over. */
export function builtin<T>(name: string): T | undefined {
  try {
    return host?.getBuiltinModule?.(name) as T | undefined;
  } catch {
    return undefined;
  }
}

export function environment(name: string): string | undefined {
  try {
    return host?.env?.[name] || undefined;
  } catch {
    return undefined; // Deno without the permission to read it
  }
}
