// Writes src/api.ts, the types of the API's bodies, from the OpenAPI document.
//
//   node scripts/generate.mjs            writes the file
//   node scripts/generate.mjs --check    fails where the file is not what it would write

import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
const { schemas } = JSON.parse(readFileSync(at("../../../openapi/quorate-v1.json"), "utf8")).components;

const comment = (text, indent) =>
  text ? `${indent}/** ${text.trim().replaceAll("*/", "*\\/").replaceAll(/\s*\n\s*/g, " ")} */\n` : "";

/** The TypeScript type of a JSON schema. */
function type(schema, indent = "") {
  if (schema === true || schema === undefined || Object.keys(schema).length === 0) return "unknown";
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const any = schema.oneOf ?? schema.anyOf;
  if (any) return any.map((one) => type(one, indent)).join(" | ");
  if (schema.allOf) return schema.allOf.map((one) => type(one, indent)).join(" & ");
  if (Array.isArray(schema.type)) return schema.type.map((one) => type({ ...schema, type: one }, indent)).join(" | ");
  switch (schema.type) {
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    case "array":
      return `Array<${type(schema.items, indent)}>`;
    case "object":
      return schema.properties ? members(schema, indent) : `Record<string, ${type(schema.additionalProperties, indent)}>`;
    default:
      if (schema.properties) return members(schema, indent);
      throw new Error(`no type for ${JSON.stringify(schema)}`);
  }
}

function members({ properties, required = [] }, indent) {
  const inner = `${indent}  `;
  const lines = Object.entries(properties).map(([name, schema]) =>
    `${comment(schema.description, inner)}${inner}${name}${required.includes(name) ? "" : "?"}: ${type(schema, inner)};\n`);
  return `{\n${lines.join("")}${indent}}`;
}

const text = [
  "// Generated from openapi/quorate-v1.json by scripts/generate.mjs. Do not edit.\n",
  ...Object.entries(schemas).map(([name, schema]) => `${comment(schema.description, "")}export type ${name} = ${type(schema)};\n`),
].join("\n");

const file = at("../src/api.ts");
if (!process.argv.includes("--check")) {
  writeFileSync(file, text);
} else if (readFileSync(file, "utf8") !== text) {
  console.error("src/api.ts is not what the OpenAPI document says: npm run generate");
  process.exit(1);
}
