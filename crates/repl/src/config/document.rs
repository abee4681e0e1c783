//! Writing the document.
