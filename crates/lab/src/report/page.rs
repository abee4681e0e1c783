//! The frame of every page: style and script inside, nothing from outside.

use super::format::escape;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A whole HTML document. `body` is HTML, `title` is text.
pub fn document(title: &str, body: &str) -> String {
    // The policy makes the promise checkable: nothing can be fetched, not even by mistake.
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\
         <link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>\n{STYLE}</style></head>\n<body><main>\n{body}</main>\
         <div id=\"tip\" hidden></div>\n<script>\n{SCRIPT}</script></body></html>\n",
        escape(title)
    )
}
