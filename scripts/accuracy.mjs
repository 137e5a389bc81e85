// Fills the README's accuracy tables from `vram-budget validate` over the measured cases. With --check it changes
// nothing and fails when a table is not what the command says now.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";

const TABLES = [
  ["cases", "family", "training-steps/cases"],
  ["recipes", "family", "training-steps/recipes"],
  ["distributed", "kind", "distributed-steps/cases"],
];

const figures = (errors) => {
  if (errors.length === 0) return "– | – | –";
  const sorted = errors.sort((a, b) => a - b);
  const at = (share) => sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)];
  return [at(0.5), at(0.95), at(1)].map((x) => x.toFixed(2)).join(" | ");
};

const table = (by, path) => {
  const out = execFileSync(
    "cargo",
    ["run", "--quiet", "--locked", "--release", "--", "validate", "--json", `tests/data/${path}.jsonl`],
    { encoding: "utf8", maxBuffer: 1 << 30, stdio: ["ignore", "pipe", "inherit"] },
  );
  const families = new Map();
  for (const line of out.split("\n").filter(Boolean)) {
    const { family, refused, readings } = JSON.parse(line);
    const of = families.get(family) ?? { cases: 0, refused: 0, max_allocated: [], max_reserved: [] };
    families.set(family, of);
    of.cases += 1;
    if (refused) of.refused += 1;
    for (const name of ["max_allocated", "max_reserved"]) {
      const { predicted, measured } = readings?.[name] ?? {};
      if (predicted != null && measured) of[name].push((Math.abs(predicted - measured) / measured) * 100);
    }
  }
  const rows = [...families].sort(([a], [b]) => (a < b ? -1 : 1)).map(
    ([family, of]) =>
      `| ${family} | ${of.cases} | ${of.refused} | ${figures(of.max_allocated)} | ${figures(of.max_reserved)} |`,
  );
  return [
    `| ${by} | cases | refused | allocated peak: median | 95th | worst | reserved peak: median | 95th | worst |`,
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ...rows,
  ].join("\n");
};

const readme = readFileSync("README.md", "utf8");
let next = readme;
for (const [name, by, path] of TABLES) {
  const [BEGIN, END] = ["begin", "end"].map((at) => `<!-- accuracy ${name}:${at} -->`);
  const [before, after] = [next.indexOf(BEGIN), next.indexOf(END)];
  if (before < 0 || after < before) throw new Error(`README.md has no ${BEGIN} … ${END}`);
  const made = table(by, path);
  console.log(made);
  next = `${next.slice(0, before + BEGIN.length)}\n${made}\n${next.slice(after)}`;
}
if (process.argv.includes("--check")) {
  if (next !== readme) {
    console.error("the README's accuracy tables are not what `vram-budget validate` says: run `make accuracy`");
    process.exit(1);
  }
} else {
  writeFileSync("README.md", next);
}
