// The component as JavaScript, made by jco, whose packages are in node_modules of the folder that JCO names.
// guarantees.py says what is asked of it.

import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(join(process.env.JCO, "package.json"));
const load = (file) => import(pathToFileURL(file));

async function prepare(wasm, folder) {
  const { transpile, writeFiles } = await load(require.resolve("@bytecodealliance/jco-transpile"));
  const options = { name: "component", outDir: folder, instantiation: "sync", noComponentErrorWrapping: false };
  const { files, exports } = await transpile(wasm, options);
  await writeFiles(files, false);
  writeFileSync(join(folder, "package.json"), '{"type": "module"}');
  console.log(JSON.stringify(exports.map(([name]) => kebab(name))));
}

/** What makes a new instance, of modules that are compiled once. */
async function instances(folder) {
  const { WASIShim } = await load(require.resolve("@bytecodealliance/preview2-shim/instantiation"));
  const { instantiate } = await load(join(folder, "component.js"));
  const modules = new Map();
  const module = (file) => {
    if (!modules.has(file)) modules.set(file, new WebAssembly.Module(readFileSync(join(folder, file))));
    return modules.get(file);
  };
  return (preopens, env) => instantiate(module, new WASIShim({ sandbox: { preopens, env } }).getImportObject());
}

async function run(folder, { calls, folders, environment, lost }) {
  const instance = await instances(folder);
  const answer = ([name, ...given]) => {
    const call = instance(folders, environment)[camel(name)];
    try {
      return { ok: call(...given) };
    } catch (error) {
      // The `err` of a result, but not a trap.
      if (error.payload === undefined) throw error;
      return { err: error.payload };
    }
  };
  console.log("ready");
  await new Promise((closed) => process.stdin.on("end", closed).resume());
  for (const call of calls) {
    const found = answer(call);
    if (lost) process.kill(process.pid, "SIGKILL");
    console.log(JSON.stringify(plain(found)));
  }
}

const kebab = (name) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
const camel = (name) => name.replace(/-(.)/g, (_, letter) => letter.toUpperCase());

/** With the names of the WIT, and numbers as JSON knows them. */
function plain(value) {
  if (typeof value === "bigint") return Number(value);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, field]) => [kebab(name), plain(field)]));
}

const [command, ...rest] = process.argv.slice(2);
if (command === "prepare") await prepare(...rest);
if (command === "run") await run(rest[0], JSON.parse(rest[1]));
