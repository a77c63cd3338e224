// The editor of the SQL page. It lives in a shadow root: there its styles are no inline ones, which the console forbids.
import { h } from "./dom.js";
import {
  Compartment, Decoration, EditorState, EditorView, HighlightStyle, PostgreSQL, Prec, StateEffect, StateField, acceptCompletion, autocompletion, bracketMatching, closeBrackets,
  closeBracketsKeymap, completionKeymap, defaultKeymap, drawSelection, history, historyKeymap, keymap, lineNumbers, placeholder, sql, syntaxHighlighting, tags,
} from "./vendor/codemirror.js";

const FONT = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const look = EditorView.theme({
  "&": { backgroundColor: "var(--card)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: "8px", fontSize: "13px", minHeight: "150px", maxHeight: "50vh" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: FONT, lineHeight: "1.5", overflow: "auto", minHeight: "150px" },
  ".cm-content": { caretColor: "var(--text)", padding: "10px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--soft)" },
  ".cm-gutters": { backgroundColor: "var(--card)", color: "var(--muted)", border: "none" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-matchingBracket": { backgroundColor: "var(--soft)", outline: "none" },
  ".cm-wrong": { textDecoration: "underline wavy var(--bad)", backgroundColor: "var(--bad-soft)" },
  ".cm-tooltip": { backgroundColor: "var(--card)", border: "1px solid var(--line)", borderRadius: "8px", color: "var(--text)" },
  ".cm-tooltip-autocomplete > ul": { fontFamily: FONT },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--soft)", color: "var(--accent)" },
});
const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--c3)" }, { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" }, { tag: tags.number, color: "var(--c2)" },
  { tag: tags.comment, color: "var(--muted)", fontStyle: "italic" }, { tag: [tags.typeName, tags.bool, tags.null], color: "var(--c4)" },
]);

const setWrong = StateEffect.define();
const wrong = StateField.define({
  create: () => Decoration.none,
  update(marks, change) {
    if (change.docChanged) return Decoration.none;
    for (const effect of change.effects) if (effect.is(setWrong)) return effect.value;
    return marks;
  },
  provide: (field) => EditorView.decorations.from(field),
});

export function sqlEditor(text, onRun, onChange) {
  const host = h("div", { class: "editor" }), root = host.attachShadow({ mode: "open" }), words = new Compartment();
  const language = (schema) => sql({ dialect: PostgreSQL, schema });
  const view = new EditorView({
    parent: root, root,
    state: EditorState.create({ doc: text, extensions: [
      Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => { onRun(); return true; } }, { key: "Tab", run: acceptCompletion }])),
      lineNumbers(), history(), drawSelection(), bracketMatching(), closeBrackets(), autocompletion({ icons: false }), placeholder("select * from orders limit 10"),
      keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap]),
      words.of(language({})), syntaxHighlighting(colours), look, wrong, EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": "SQL query", spellcheck: "false" }),
      EditorView.updateListener.of((update) => { if (update.docChanged) onChange(view.state.doc.toString()); }),
    ] }),
  });
  return {
    host,
    text: () => view.state.doc.toString(),
    write: (fresh) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: fresh } }),
    focus: () => view.focus(),
    use: (schema) => view.dispatch({ effects: words.reconfigure(language(schema)) }),
    // Underline what an error is about: DuckDB marks the place with ^ below the line, or names it in quotes.
    mark(message) {
      const found = /LINE (\d+): (.*)\n(\s*)\^/.exec(message), doc = view.state.doc;
      let from = doc.toString().indexOf(/"([^"\n]+)"/.exec(message)?.[1] ?? "\0");
      if (found && Number(found[1]) <= doc.lines) from = doc.line(Number(found[1])).from + Math.max(0, found[3].length - `LINE ${found[1]}: `.length);
      if (from < 0 || from >= doc.length) return;
      const to = from + (/^[\w$."]+/.exec(doc.sliceString(from, doc.lineAt(from).to))?.[0].length || 1);
      view.dispatch({ effects: setWrong.of(Decoration.set([Decoration.mark({ class: "cm-wrong" }).range(from, Math.min(to, doc.length))])) });
    },
    close: () => view.destroy(),
  };
}
