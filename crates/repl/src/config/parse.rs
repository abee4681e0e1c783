//! Reading the document.
