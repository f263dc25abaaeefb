"""The look of the report: one style sheet, light and dark, for screens from a telephone up and for paper.

Colors are named once, by their role, and given twice. Text on its background reaches a contrast of 4.5 : 1 or more in
both (WCAG 2.2, level AA). Fonts are those of the reader's machine, since the page fetches nothing.
"""

STYLE = """
:root {
  --paper: #fdfcf9; --card: #ffffff; --ink: #22262b; --soft: #5d6670; --line: #e4e0d7; --grid: #eceae3;
  --train: #2c6496; --validation: #b54423; --raw: #8fb3d1; --mark: #7b6a3c; --good: #2b7350; --wash: #f5f2ea;
  --run0: #2c6496; --run1: #b54423; --run2: #2b7350; --run3: #8a3f8f; --run4: #8f6a00; --run5: #007c86;
  --run6: #5b5fc7; --run7: #a3315b;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, "Book Antiqua", "URW Palladio L", P052, Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --card: #1b1f23; --ink: #e7e4dc; --soft: #a0a7ad; --line: #30363b; --grid: #272c31;
    --train: #82b8e6; --validation: #f29a72; --raw: #4d789d; --mark: #cdb878; --good: #7fcaa3; --wash: #20252a;
    --run0: #82b8e6; --run1: #f29a72; --run2: #7fcaa3; --run3: #d9a0dd; --run4: #dcc069; --run5: #6fcfd6;
    --run6: #aab0f5; --run7: #f19abb;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 68rem; padding: 3rem 1.5rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 var(--sans); font-variant-numeric: tabular-nums; }
h1, h2, h3 { font-family: var(--serif); font-weight: 600; line-height: 1.2; text-wrap: balance; margin: 0; }
h1 { font-size: clamp(1.9rem, 5vw, 2.7rem); letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 3.2rem 0 1.1rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.06rem; }
p { margin: 0; }
.brand { font: 600 .8rem/1 var(--sans); letter-spacing: .14em; text-transform: uppercase; color: var(--validation);
  margin-bottom: .9rem; }
.lead { color: var(--soft); margin-top: .55rem; overflow-wrap: anywhere; }
.lead strong { color: var(--good); font-weight: 600; }

.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: 1px; margin: 2rem 0 0;
  background: var(--card); border: 1px solid var(--line); border-radius: .6rem; overflow: hidden; }
.card { box-shadow: 0 0 0 1px var(--line); padding: 1.05rem 1.2rem 1.1rem; }
.card dt { color: var(--soft); font-size: .84rem; }
.card dd { margin: .2rem 0 .1rem; font: 600 1.7rem/1.2 var(--serif); font-variant-numeric: lining-nums tabular-nums; }
.card p { color: var(--soft); font-size: .84rem; line-height: 1.4; }

.race { display: grid; grid-template-columns: max-content 1fr max-content; gap: .5rem 1rem; align-items: center;
  margin: 0; font-size: .95rem; }
.race + .note { margin-top: .9rem; font-size: .84rem; }
.race dt { color: var(--soft); } .race dd { margin: 0; }
.race .bar { background: var(--wash); border-radius: .25rem; height: .95rem; }
.race .bar i { display: block; height: 100%; border-radius: .25rem; background: var(--raw); }
.race .own { color: var(--ink); font-weight: 600; } .race .own.bar i { background: var(--train); }

.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 2.4rem 2.4rem;
  margin-top: 2.4rem; }
figure { margin: 0; min-width: 0; position: relative; break-inside: avoid; }
figcaption { display: flex; flex-wrap: wrap; align-items: baseline; gap: .1rem .9rem; margin-bottom: .9rem; }
.unit, .x { color: var(--soft); font-size: .84rem; }
.x { text-align: right; margin-top: 1.75rem; line-height: 1; }
figcaption ul { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; list-style: none; margin: 0 0 0 auto; padding: 0;
  font-size: .84rem; color: var(--soft); }
figcaption li::before { content: ""; display: inline-block; width: 1.1rem; height: 0; margin-right: .45rem;
  vertical-align: .28em; border-top: 2.5px solid var(--train); border-radius: 2px; }
figcaption li.validation::before { border-color: var(--validation); }
figcaption li.raw::before { border-color: var(--raw); }
figcaption li.mark::before { border-top: 2px dashed var(--mark); border-radius: 0; width: 1.3rem; }
.plot { position: relative; height: 12.5rem; margin-left: 3.1rem; border-bottom: 1px solid var(--soft); }
.main .plot { height: clamp(15rem, 40vw, 23rem); }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path { fill: none; stroke: var(--train); stroke-width: 2; vector-effect: non-scaling-stroke;
  stroke-linejoin: round; stroke-linecap: round; }
.plot path.raw { stroke: var(--raw); stroke-width: 1; opacity: .85; }
.plot path.validation { stroke: var(--validation); stroke-width: 2.25; }
.plot path.dot { stroke-width: 6; opacity: 1; }
.plot path.dot.lone { stroke-width: 10; }
.plot path.mark { stroke: var(--mark); stroke-width: 1.25; stroke-dasharray: 4 4; }
.gx, .gy { position: absolute; background: var(--grid); }
.gy { left: 0; right: 0; height: 1px; } .gx { top: 0; bottom: -.35rem; width: 1px; }
.lx, .ly { position: absolute; color: var(--soft); font-size: .8rem; line-height: 1; white-space: nowrap; }
.ly { right: 100%; padding-right: .6rem; transform: translateY(50%); }
.lx { top: 100%; margin-top: .6rem; transform: translateX(-50%); }
.probes { position: absolute; inset: 0; display: flex; }
.probes i { flex: 1; }
.probes b { display: none; position: absolute; right: 0; bottom: calc(100% + .15rem); padding: .3rem .7rem;
  background: var(--ink); color: var(--paper); border-radius: .35rem; font: 500 .82rem/1.45 var(--sans);
  max-width: 100%; text-align: right; pointer-events: none; z-index: 1; }
.probes em { font-style: normal; opacity: .75; margin-left: .7rem; }
.probes i:hover { background: linear-gradient(to right, transparent calc(50% - .5px), var(--soft) 0,
  var(--soft) calc(50% + .5px), transparent 0); }
.probes i:hover b { display: block; }

.run0 { --own: var(--run0); } .run1 { --own: var(--run1); } .run2 { --own: var(--run2); }
.run3 { --own: var(--run3); } .run4 { --own: var(--run4); } .run5 { --own: var(--run5); }
.run6 { --own: var(--run6); } .run7 { --own: var(--run7); }
.plot path[class^="run"] { stroke: var(--own); } figcaption li[class^="run"]::before { border-color: var(--own); }
.plot path.faint { stroke-width: 1; opacity: .35; }
figcaption li.faint { display: none; }
.compared { margin-top: 1.6rem; } .compared th, .compared td { padding-right: 1rem; }
.compared th.num, .compared td.num { padding-right: 1.2rem; }
.key { color: var(--own); font-weight: 700; }
.over { display: none; }
.over .plot { height: clamp(13rem, 32vw, 19rem); } .over figure + figure { margin-top: 2.6rem; }
.axes { position: relative; } .axes > input { position: absolute; opacity: 0; }
.axes > label { display: inline-block; padding: .3rem .9rem; margin: 0 .4rem 1.6rem 0; border: 1px solid var(--line);
  border-radius: 1rem; color: var(--soft); font-size: .9rem; cursor: pointer; }
.axes > input:checked + label { background: var(--ink); border-color: var(--ink); color: var(--paper); }
.axes > input:focus-visible + label { outline: 2px solid var(--train); outline-offset: 2px; }
#steps:checked ~ .over.steps, #tokens:checked ~ .over.tokens, #time:checked ~ .over.time { display: block; }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .84rem; white-space: nowrap; }
th, td { padding: .5rem 1.4rem .5rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
th.num, td.num { text-align: right; white-space: nowrap; padding-right: 2.4rem; }
th:not(:last-child), td:not(:last-child) { width: 1%; white-space: nowrap; }
td:last-child { overflow-wrap: break-word; }
table + table, .scroll + .scroll, h3 + .scroll { margin-top: .6rem; }
.task { margin-top: 1.8rem; }

.samples { display: grid; gap: 1.4rem; }
.sample { break-inside: avoid-page; }
.sample p { color: var(--soft); font-size: .84rem; margin-bottom: .4rem; }
pre { margin: 0; padding: 1rem 1.2rem; background: var(--wash); border-radius: .5rem; font: .86rem/1.55 var(--mono);
  overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
pre .prompt, pre .comment { color: var(--soft); }
pre .head { color: var(--train); font-weight: 600; }
.samples pre { border-left: 3px solid var(--raw); border-radius: 0 .5rem .5rem 0; }
.recipe { white-space: pre; overflow-wrap: normal; }
details { margin-top: 1.4rem; } summary { cursor: pointer; color: var(--train); }
details > * + * { margin-top: 1.2rem; }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .3rem 1.6rem; margin: .6rem 0 0;
  font-size: .95rem; }
.facts dt { color: var(--soft); } .facts dd { margin: 0; overflow-wrap: anywhere; }
.session + .session { margin-top: 2rem; }
.note { color: var(--soft); }
footer { margin-top: 3.5rem; padding-top: 1.1rem; border-top: 1px solid var(--line); color: var(--soft);
  font-size: .84rem; }
@media (min-width: 34.01rem) {
  .cards:has(> :nth-child(6):last-child) { grid-template-columns: repeat(3, minmax(0, 1fr)); }
}
@media (max-width: 34rem) {
  body { padding: 2rem 1rem 3rem; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); }
  .card { padding: .85rem .9rem; } .card dd { font-size: 1.4rem; }
  figcaption ul { margin-left: 0; width: 100%; }
  table { font-size: .88rem; } th, td { padding-right: .9rem; } th.num, td.num { padding-right: 1.2rem; }
  th:not(:last-child, .num), td:not(:last-child, .num) { width: auto; white-space: normal; }
  .facts { grid-template-columns: 1fr; gap: 0; } .facts dd { margin-bottom: .55rem; }
}
@media print {
  :root { --paper: #fff; --card: #fff; --ink: #000; --soft: #444; --line: #ccc; --grid: #e5e5e5; --wash: #f6f6f6;
    --train: #1f5583; --validation: #b0401d; --raw: #9dbcd6; --mark: #6b5b2e; --good: #1d5a3d; }
  @page { margin: 16mm 14mm; }
  html { font-size: 9.5pt; } body { max-width: none; padding: 0; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .probes { display: none; } h2 { break-after: avoid; margin-top: 1.8rem; } pre, .recipe { white-space: pre-wrap; }
  .main .plot { height: 7cm; }
  .charts { grid-template-columns: 1fr 1fr; }
}
"""
