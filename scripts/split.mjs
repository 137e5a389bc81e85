// Cuts the page's program in two: what the first answer needs, and the rest, which the page fetches once that is drawn.
//
// Both halves stay one program: they share memory and the table of functions. The first half holds every function that
// runs until the answer is drawn, which is found by doing that here, in a document without a browser. The others have a
// place in the table, and calls from the first half go through it. Until the rest is there a stub stands in each such
// place, which fetches the rest and goes on (static/boot.js). So where a function lies is a matter of waiting, never of
// what it does.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseHTML } from "linkedom";

const NAME = /\$"(?:[^"\\]|\\.)*"|\$[^\s()]+/;
/** Where a function names another. There are no references to functions but these and the table's. */
const CALL = new RegExp(`\\(call (${NAME.source})`, "g");
/** A function that is no larger than its stub stays in the first half, if it calls none of the rest. In lines of text. */
const SMALL = 10;

const tool = (name, ...args) => execFileSync(name, args, { stdio: ["ignore", "inherit", "inherit"] });
const nameOf = (form) => form.match(NAME)[0];
const lastName = (form) => form.match(new RegExp(`(${NAME.source})\\)*$`))[1];

/** The module's parts as `wasm-dis` prints them, each beginning on a line of its own, indented by one space. */
function read(wat, shortened) {
  const text = readFileSync(wat, "utf8");
  const features = text.match(/;; features section: (.*)/)[1].split(", ").map((feature) => `--enable-${feature}`);
  const forms = text.replace(/\n ?;;[^\n]*/g, "").replace(/\n\)\s*$/, "").split(/\n (?=\()/).slice(1);
  const rename = (form) => form.replace(/(?<=^\(import "[^"]*" )"[^"]*"/, shortened);
  const of = (kind) => forms.filter((form) => form.startsWith(`(${kind} `)).map(rename);
  return { features, of, funcs: new Map(of("func").map((form) => [nameOf(form), form])) };
}

function assemble(features, forms, path) {
  writeFileSync(`${path}.wat`, `(module\n${forms.join("\n")}\n)\n`);
  tool("wasm-as", ...features, `${path}.wat`, "-o", path);
}

/** Parameters and results of a function, without names. */
const signature = (form) =>
  [...form.split("\n")[0].matchAll(/\((param|result)(?: \$\d+)?((?: \w+)+)\)/g)].map(([, kind, types]) => `(${kind}${types})`).join(" ");

/** The names of the functions that run until the answer is drawn. */
async function ranFirst({ features, of, funcs }, glue, html, dir) {
  const names = [...funcs.keys()];
  const counted = names.map((name, i) => {
    const lines = funcs.get(name).split("\n");
    const body = lines.findIndex((line, i) => i > 0 && !line.startsWith("  (local $"));
    lines.splice(body < 0 ? lines.length : body, 0, `(call $ran (i32.const ${i}))`);
    return lines.join("\n");
  });
  const others = ["type", "import", "global", "memory", "data", "table", "elem", "export", "start"];
  const [types, imports, ...rest] = others.map(of);
  const path = join(dir, "counted.wasm");
  assemble(features, [...types, ...imports, `(import "split" "ran" (func $ran (param i32)))`, ...rest.flat(), ...counted], path);

  const ran = new Set();
  const window = parseHTML(html);
  // The page as it is while the rest is not there, and what this document lacks.
  window.document.documentElement.dataset.partial = "";
  Object.defineProperty(window.HTMLSelectElement.prototype, "value", { value: "", writable: true });
  const any = { [Symbol.hasInstance]: () => true };
  const location = { hash: "", href: "http://localhost/" };
  const globals = {
    window, document: window.document, location, Window: any, Element: any, Event: window.Event,
    localStorage: { getItem: () => null, setItem() {} },
    setTimeout: setImmediate,
    requestAnimationFrame: setImmediate,
  };
  for (const [name, value] of Object.entries(globals)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  Object.assign(window, globals);
  const own = WebAssembly.Instance;
  WebAssembly.Instance = function (module, imports) {
    return new own(module, { ...imports, split: { ran: (i) => ran.add(names[i]) } });
  };
  const { initSync } = await import(pathToFileURL(glue));
  initSync({ module: readFileSync(path) });
  WebAssembly.Instance = own;
  for (let i = 0; i < 20; i++) await new Promise((done) => setImmediate(done));
  if (!window.document.querySelector("#verdict")) throw new Error("the program drew no answer");
  return ran;
}

/** Splits `program` into the files `first` and `rest` of `dir`; `glue` is its JavaScript, `html` its document. */
async function split({ program, shortened, glue, html, dir, first, rest }) {
  const wat = join(dir, "program.wat");
  tool("wasm-dis", program, "-o", wat);
  const module = read(wat, shortened);
  const { features, of, funcs } = module;
  if (/\((ref\.func|return_call) /.test([...funcs.values()].join())) throw new Error("another reference than a call");
  const exported = new Set(of("export").filter((form) => form.includes("(func ")).map(lastName));
  const ran = await ranFirst(module, glue, html, dir);

  const calls = (name) => [...funcs.get(name).matchAll(CALL)].map(([, callee]) => callee);
  const later = new Set([...funcs.keys()].filter((name) => !ran.has(name) && !exported.has(name)));
  const small = [...later].filter((name) => funcs.get(name).split("\n").length <= SMALL);
  for (let before = -1; before !== later.size; ) {
    before = later.size;
    for (const name of small) if (!calls(name).some((callee) => later.has(callee))) later.delete(name);
  }

  // Where the functions of the rest that the first half refers to lie in the table.
  const [elem, ...more] = of("elem");
  const parts = elem.match(new RegExp(`^\\(elem ${NAME.source} (?:\\(table (${NAME.source})\\) )?\\(i32\\.const (\\d+)\\) func `));
  if (more.length || !parts) throw new Error("another element segment than expected");
  const tables = of("table");
  const table = parts[1] ?? nameOf(tables[0]);
  const start = Number(parts[2]);
  const slots = [...elem.slice(parts[0].length).matchAll(new RegExp(NAME, "g"))].map(([name]) => name);
  const slotOf = new Map();
  slots.forEach((name, i) => later.has(name) && !slotOf.has(name) && slotOf.set(name, start + i));
  for (const name of funcs.keys()) {
    if (later.has(name)) continue;
    for (const callee of calls(name)) {
      if (later.has(callee) && !slotOf.has(callee)) {
        slotOf.set(callee, start + slots.length);
        slots.push(callee);
      }
    }
  }

  /** A function of the first half, its calls into the rest through the table. */
  const indirect = (name) => {
    const out = [];
    const open = [];
    for (const line of funcs.get(name).split("\n")) {
      const call = line.match(new RegExp(`^( *)\\(call (${NAME.source})(\\)?)$`));
      if (call && later.has(call[2])) {
        const [, indent, callee, closed] = call;
        const slot = `(i32.const ${slotOf.get(callee)})`;
        out.push(`${indent}(call_indirect ${table} ${signature(funcs.get(callee))}${closed && ` ${slot})`}`);
        if (!closed) open.push([indent, slot]);
        continue;
      }
      if (open.length && line.startsWith(`${open.at(-1)[0]})`)) out.push(open.pop()[1]);
      out.push(line);
    }
    return out.join("\n");
  };

  const used = new Set([...later].flatMap(calls).filter((name) => !later.has(name)));
  const short = new Map([...used].filter((name) => funcs.has(name)).map((name, i) => [name, i.toString(36)]));
  const stub = (name) => (later.has(name) ? `$stub${slotOf.get(name)}` : name);
  const size = start + slots.length;
  const mutable = of("global").filter((form) => form.includes("(mut "));
  const exportOf = (form) => of("export").find((e) => e.endsWith(` ${nameOf(form)}))`)).match(/"([^"]*)"/)[1];
  const sized = (form) => (nameOf(form) === table ? form.replace(/\d+ \d+ funcref/, `${size} ${size} funcref`) : form);
  const firstHalf = [
    ...of("type"),
    ...of("import"),
    // The stubs are told apart by their order, which costs no names.
    ...[...slotOf.keys()].map((name) => `(import "rest" "" (func ${stub(name)} ${signature(funcs.get(name))}))`),
    ...of("global"), ...of("memory"), ...of("data"), ...tables.map(sized),
    `(elem (table ${table}) (i32.const ${start}) func ${slots.map(stub).join(" ")})`,
    ...of("export"),
    `(export "table" (table ${table}))`,
    ...mutable.map((form, i) => `(export "global${i}" (global ${nameOf(form)}))`),
    ...[...short].map(([name, as]) => `(export "${as}" (func ${name}))`),
    ...of("start"),
    ...[...funcs.keys()].filter((name) => !later.has(name)).map(indirect),
  ];
  const secondHalf = [
    ...of("type"),
    ...of("import").filter((form) => used.has(nameOf(form))),
    ...[...short].map(([name, as]) => `(import "first" "${as}" (func ${name} ${signature(funcs.get(name))}))`),
    ...of("memory").map((form) => `(import "first" "memory" ${form})`),
    ...tables.map((form) => `(import "first" "${nameOf(form) === table ? "table" : exportOf(form)}" ${sized(form)})`),
    ...mutable.map((form, i) => `(import "first" "global${i}" (global ${nameOf(form)} ${form.match(/\(mut \w+\)/)[0]}))`),
    ...of("global").filter((form) => !form.includes("(mut ")),
    ...[...slotOf].map(([name, slot]) => `(elem (table ${table}) (i32.const ${slot}) func ${name})`),
    ...[...slotOf.keys()].map((name, i) => `(export "${i.toString(36)}" (func ${name}))`),
    ...[...later].map((name) => funcs.get(name)),
  ];
  for (const [forms, path] of [[firstHalf, first], [secondHalf, rest]]) {
    assemble(features, forms, path);
    const passes = ["-Oz", "--strip-producers", "--strip-target-features", "--skip-pass=duplicate-import-elimination"];
    tool("wasm-opt", ...features, ...passes, path, "-o", path);
  }
  const imports = WebAssembly.Module.imports(new WebAssembly.Module(readFileSync(first)));
  if (imports.filter((i) => i.module === "rest").length !== slotOf.size) throw new Error("some stubs are gone");
  return `${funcs.size - later.size} of ${funcs.size} functions are in the first half, with ${slotOf.size} stubs`;
}

const DIST = process.argv[2] ?? "dist";
const find = (pattern) => {
  const found = readdirSync(DIST).filter((name) => pattern.test(name));
  if (found.length !== 1) throw new Error(`${DIST}/ has ${found.length} files like ${pattern}: build it first`);
  return found[0];
};
const dir = mkdtempSync(join(tmpdir(), "vram-budget-"));
try {
  const [whole, js] = [find(/_bg\.wasm$/), find(/^web.*\.js$/)];
  const html = readFileSync(`${DIST}/index.html`, "utf8");
  const [first, rest, glue] = ["first.wasm", "rest.wasm", "glue.mjs"].map((name) => join(dir, name));
  // The names by which the program asks for what the glue has are long; short ones do.
  const program = readFileSync(`${DIST}/${whole}`);
  const asked = WebAssembly.Module.imports(new WebAssembly.Module(program)).map((i) => i.name);
  const shortNames = new Map(asked.map((name, i) => [name, `i${i.toString(36)}`]));
  const shortened = (text) => text.replace(/\b__wb(g|indgen)_\w+/g, (name) => shortNames.get(name) ?? name);
  writeFileSync(glue, shortened(readFileSync(`${DIST}/${js}`, "utf8")));
  console.log(await split({ program: `${DIST}/${whole}`, shortened, glue, html, dir, first, rest }));
  // They belong together: one name for all.
  const parts = [[first, whole, "web", "wasm"], [glue, js, "web", "js"], [rest, null, "rest", "wasm"]];
  const hash = createHash("sha256");
  for (const [path] of parts) hash.update(readFileSync(path));
  const common = hash.digest("hex").slice(0, 16);
  let page = html;
  for (const [path, before, name, ending] of parts) {
    const after = `${name}-${common}.${ending}`;
    copyFileSync(path, `${DIST}/${after}`);
    if (before) {
      rmSync(`${DIST}/${before}`);
      page = page.replaceAll(before, after);
    }
  }
  const attribute = /(data-wasm="[^"]*")/;
  if (!attribute.test(page)) throw new Error(`${DIST}/index.html names no program`);
  writeFileSync(`${DIST}/index.html`, page.replace(attribute, `$1 data-rest="./rest-${common}.wasm"`));
} finally {
  rmSync(dir, { recursive: true, force: true });
}
// The program that was drawn may still have timers.
process.exit();
