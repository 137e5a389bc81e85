// Cuts the page's program in two: what draws the first answer, and the rest, which the page fetches once that is drawn.
//
// Both halves stay one program: they share memory and the table of functions. The first half holds every function that
// runs and every byte of data that is read until the answer is drawn, which is found by doing that here, in a document
// without a browser. The others come with the rest, whose instance puts them into their places in table and memory.
//
// This is sound because what draws the first answer has no input but the stored colours, which are all tried here, and
// because nothing enters the program after that and before the rest is there: static/boot.js sees to it. A link's plan is
// input, so then both halves come first. Should a browser's start call what is not there after all, it traps, and the
// boot script starts over with both halves.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { copyFileSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { transformSync } from "esbuild";
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

/** What the program may find stored: nothing, the colours, or a storage that is forbidden. */
const STORAGES = [() => null, () => "light", () => "dark", () => { throw new Error("forbidden"); }];

/** Starts a program in a document without a browser, once for each storage, with what `split` has to be imported.
 *  `read` hears which bytes of the memory the glue reads, `end` what it exports and imports once it is drawn. The
 *  documents that it draws. */
async function draw(program, glue, html, { split = {}, read = () => {}, end = () => {} } = {}) {
  const drawn = [];
  const own = WebAssembly.Instance;
  const { now } = Date;
  const subarray = Uint8Array.prototype.subarray;
  for (const getItem of STORAGES) {
    const window = parseHTML(html);
    // The page as it is while the rest is not there, and what this document lacks.
    window.document.documentElement.dataset.partial = "";
    Object.defineProperty(window.HTMLSelectElement.prototype, "value", { value: "", writable: true, configurable: true });
    const any = { [Symbol.hasInstance]: () => true };
    const location = { hash: "", href: "http://localhost/" };
    const globals = {
      window, document: window.document, location, Window: any, Element: any, Event: window.Event,
      localStorage: { getItem, setItem: getItem },
      setTimeout: setImmediate,
      requestAnimationFrame: setImmediate,
    };
    for (const [name, value] of Object.entries(globals)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
    Object.assign(window, globals);
    let started, memory;
    let over = false;
    WebAssembly.Instance = function (module, imports) {
      const { exports } = new own(module, { ...imports, split });
      started = [exports, imports];
      memory = exports.memory;
      const watched = ([name, it]) => [name, typeof it !== "function" ? it : (...args) => {
        if (over) throw new Error(`the program goes on by itself once its answer is drawn: ${name}`);
        return it(...args);
      }];
      return { exports: Object.fromEntries(Object.entries(exports).map(watched)) };
    };
    Uint8Array.prototype.subarray = function (start, end) {
      if (this.buffer === memory?.buffer) read(start, end - start);
      return subarray.call(this, start, end);
    };
    // As in static/boot.js the start has no clock, which it would go different ways by, and ends with its microtasks.
    Date.now = () => 0;
    const { initSync } = await import(`${pathToFileURL(glue)}?${program}-${drawn.length}`);
    initSync({ module: readFileSync(program) });
    for (let i = 0; i < 10; i++) await null;
    Date.now = now;
    Uint8Array.prototype.subarray = subarray;
    WebAssembly.Instance = own;
    over = true;
    for (let i = 0; i < 20; i++) await new Promise((done) => setImmediate(done));
    if (!window.document.querySelector("#verdict")) throw new Error("the program drew no answer");
    drawn.push(window.document.documentElement.outerHTML);
    end(...started);
  }
  return drawn;
}

/** A module's active data segments: `{ at, bytes }`. */
function segments(program) {
  const bytes = readFileSync(program);
  let p = 8;
  const leb = () => {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = bytes[p++];
      value |= (byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  const found = [];
  while (p < bytes.length) {
    const [id, size] = [bytes[p++], leb()];
    const end = p + size;
    if (id === 11) {
      for (let count = leb(); count > 0; count--) {
        if (leb() !== 0 || bytes[p++] !== 0x41) throw new Error("another data segment than expected");
        const at = leb();
        if (bytes[p++] !== 0x0b) throw new Error("another data segment than expected");
        const length = leb();
        found.push({ at, bytes: bytes.subarray(p, (p += length)) });
      }
    }
    p = end;
  }
  return found;
}

const dataForm = ({ at, bytes }) => `(data (i32.const ${at}) "${[...bytes].map((b) => `\\${b.toString(16).padStart(2, "0")}`).join("")}")`;

const ACCESS = /^ *\((i32|i64|f32|f64)\.(load|store)(8|16|32)?(_[su])?(?: offset=(\d+))?(?: align=\d+)?$/;
const BULK = /^( *)\(memory\.(copy|fill)$/;

/** The names of the functions that run until the answer is drawn, which bytes of data are touched then, and what is drawn. */
async function ranFirst({ features, of, funcs }, data, glue, html, dir) {
  const names = [...funcs.keys()];
  const [from, to] = [data[0].at, Math.max(...data.map(({ at, bytes }) => at + bytes.length))];
  const touched = new Set();
  const touch = (at, size) => {
    for (let i = Math.max(at, from); i < Math.min(at + size, to); i++) touched.add(i);
  };
  const helpers = new Map();
  const watched = (line) => {
    const bulk = line.match(BULK);
    if (bulk) return `${bulk[1]}(call $split_${bulk[2]}`;
    const access = line.match(ACCESS);
    if (!access) return line;
    const [form, type, kind, width, , offset = 0] = access;
    const op = form.trim();
    if (!helpers.has(op)) {
      const size = width ? width / 8 : type.slice(1) / 8;
      const [results, value] = kind === "load" ? [`(result ${type})`, ""] : [`(param ${type})`, "(local.get 1)"];
      helpers.set(op, `(func $split${helpers.size} (param i32) ${results}
        (call $split_touch (i32.add (local.get 0) (i32.const ${offset})) (i32.const ${size})) ${op} (local.get 0) ${value}))`);
    }
    return line.replace(op, `(call ${nameOf(helpers.get(op))}`);
  };
  const counted = names.map((name, i) => {
    const lines = funcs.get(name).split("\n");
    const body = lines.findIndex((line, i) => i > 0 && !line.startsWith("  (local $"));
    lines.splice(body < 0 ? lines.length : body, 0, `(call $split_ran (i32.const ${i}))`);
    return lines.map(watched).join("\n");
  });
  const bulk = (name, reads) => `(func $split_${name} (param i32 i32 i32)
    (call $split_touch (local.get 0) (local.get 2)) ${reads} (memory.${name} (local.get 0) (local.get 1) (local.get 2)))`;
  const others = ["type", "import", "global", "memory", "data", "table", "elem", "export", "start"];
  const [types, imports, ...rest] = others.map(of);
  const path = join(dir, "counted.wasm");
  assemble(features, [
    ...types,
    ...imports,
    `(import "split" "ran" (func $split_ran (param i32)))`,
    `(import "split" "touch" (func $split_report (param i32 i32)))`,
    ...rest.flat(),
    ...counted,
    ...helpers.values(),
    bulk("copy", "(call $split_touch (local.get 1) (local.get 2))"),
    bulk("fill", ""),
    `(func $split_touch (param i32 i32) (if (i32.and (i32.lt_u (local.get 0) (i32.const ${to}))
      (i32.gt_u (i32.add (local.get 0) (local.get 1)) (i32.const ${from}))) (then (call $split_report (local.get 0) (local.get 1)))))`,
  ], path);
  const ran = new Set();
  const drawn = await draw(path, glue, html, { split: { ran: (i) => ran.add(names[i]), touch }, read: touch });
  return { ran, touched, drawn };
}

/** What of a segment is not touched, in pieces. */
function untouched({ at, bytes }, touched) {
  const pieces = [];
  for (let i = 0; i < bytes.length; i++) {
    if (touched.has(at + i) || bytes[i] === 0) continue;
    const last = pieces.at(-1);
    // Zeros between are cheaper than a further piece; what is touched may have changed and stays as it is.
    const joins = last && at + i - last.end <= 8 && Array.from({ length: at + i - last.end }, (_, j) => last.end + j).every((j) => !touched.has(j));
    if (joins) last.end = at + i + 1;
    else pieces.push({ at: at + i, end: at + i + 1 });
  }
  return pieces.map((piece) => ({ at: piece.at, bytes: bytes.subarray(piece.at - at, piece.end - at) }));
}

/** Splits `program` into the files `first` and `rest` of `dir`; `glue` is its JavaScript, `html` its document. */
async function split({ program, shortened, glue, html, dir, first, rest }) {
  const wat = join(dir, "program.wat");
  tool("wasm-dis", program, "-o", wat);
  const module = read(wat, shortened);
  const { features, of, funcs } = module;
  if (/\((ref\.func|return_call) /.test([...funcs.values()].join())) throw new Error("another reference than a call");
  const exported = new Set(of("export").filter((form) => form.includes("(func ")).map(lastName));
  const data = segments(program);
  const { ran, touched, drawn } = await ranFirst(module, data, glue, html, dir);

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

  // What the rest calls of the first half it finds in the table too, which costs less than names.
  const used = new Set([...later].flatMap(calls).filter((name) => !later.has(name)));
  const shared = new Map([...used].filter((name) => funcs.has(name)).map((name) => [name, slots.indexOf(name)]));
  for (const [name, slot] of shared) shared.set(name, start + (slot < 0 ? slots.push(name) - 1 : slot));
  const size = start + slots.length;
  const mutable = of("global").filter((form) => form.includes("(mut "));
  const exportOf = (form) => of("export").find((e) => e.endsWith(` ${nameOf(form)}))`)).match(/"([^"]*)"/)[1];
  const sized = (form) => (nameOf(form) === table ? form.replace(/\d+ \d+ funcref/, `${size} ${size} funcref`) : form);
  const firstHalf = [
    ...of("type"),
    ...of("import"),
    ...of("global"), ...of("memory"), ...tables.map(sized),
    // What holds the places of what is not there: that costs less than to leave them empty.
    "(func $absent (unreachable))",
    `(elem (table ${table}) (i32.const ${start}) func ${slots.map((name) => (later.has(name) ? "$absent" : name)).join(" ")})`,
    ...data.map(({ at, bytes }) => dataForm({ at, bytes: bytes.map((byte, i) => (touched.has(at + i) ? byte : 0)) })),
    ...of("export"),
    `(export "table" (table ${table}))`,
    ...mutable.map((form, i) => `(export "global${i}" (global ${nameOf(form)}))`),
    ...of("start"),
    ...[...funcs.keys()].filter((name) => !later.has(name)).map(indirect),
  ];
  const secondHalf = [
    ...of("type"),
    ...of("import").filter((form) => used.has(nameOf(form))),
    ...[...shared].map(([name, slot]) => `(import "first" "${slot}" (func ${name} ${signature(funcs.get(name))}))`),
    ...of("memory").map((form) => `(import "first" "memory" ${form})`),
    ...tables.map((form) => `(import "first" "${nameOf(form) === table ? "table" : exportOf(form)}" ${sized(form)})`),
    ...mutable.map((form, i) => `(import "first" "global${i}" (global ${nameOf(form)} ${form.match(/\(mut \w+\)/)[0]}))`),
    ...of("global").filter((form) => !form.includes("(mut ")),
    // A function may have several places.
    ...slots.flatMap((name, i) => (later.has(name) ? `(elem (table ${table}) (i32.const ${start + i}) func ${name})` : [])),
    ...data.flatMap((segment) => untouched(segment, touched)).map(dataForm),
    ...[...later].map((name) => funcs.get(name)),
  ];
  for (const [forms, path] of [[firstHalf, first], [secondHalf, rest]]) {
    assemble(features, forms, path);
    const passes = ["-Oz", "--strip-producers", "--strip-target-features", "--skip-pass=duplicate-import-elimination"];
    tool("wasm-opt", ...features, ...passes, path, "-o", path);
  }
  const absent = slots.findIndex((name) => later.has(name)) + start;
  const half = await draw(first, glue, html, {
    end(exports, imports) {
      const functions = Array.from({ length: size }, (_, slot) => exports.table.get(slot));
      const own = Object.fromEntries(functions.map((it, slot) => [slot, it]));
      new WebAssembly.Instance(new WebAssembly.Module(readFileSync(rest)), { ...imports, first: { ...exports, ...own } });
      if (functions.some((_, slot) => exports.table.get(slot) === functions[absent])) throw new Error("the rest does not bring all functions");
      const memory = new Uint8Array(exports.memory.buffer);
      const isThere = ({ at, bytes }) => bytes.every((byte, i) => touched.has(at + i) || memory[at + i] === byte);
      if (!data.every(isThere)) throw new Error("the rest does not bring all data");
    },
  });
  if (drawn.some((document, i) => document !== half[i])) throw new Error("the first half draws something else than the whole");
  const total = data.reduce((sum, { bytes }) => sum + bytes.length, 0);
  return `the first half has ${funcs.size - later.size} of ${funcs.size} functions and ${touched.size} of ${total} bytes of data`;
}

const DIST = process.argv[2] ?? "dist";
const find = (pattern) => {
  const found = readdirSync(DIST).filter((name) => pattern.test(name));
  if (found.length !== 1) throw new Error(`${DIST}/ has ${found.length} files like ${pattern}: build it first`);
  return found[0];
};
/** A script or a style without its comments and spaces, for the browsers that index.html names. */
const minified = (text, loader) =>
  transformSync(text, { loader, minify: true, target: ["chrome91", "edge91", "firefox89", "safari16.4"] }).code;
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
  writeFileSync(glue, minified(shortened(readFileSync(`${DIST}/${js}`, "utf8")), "js"));
  for (const [name, loader] of [["boot.js", "js"], [find(/^style.*\.css$/), "css"]]) {
    writeFileSync(`${DIST}/${name}`, minified(readFileSync(`${DIST}/${name}`, "utf8"), loader));
  }
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
