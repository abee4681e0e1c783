//! The query language: pure functions of documents.
//!
//! - [`matcher`]: filters. [`Matcher::parse`](matcher::Matcher::parse) gives a normalised tree that
//!   the planner reads and that decides, on raw bytes, whether a document matches.
//! - [`schema`]: `$jsonSchema`; [`validation`]: the `errInfo` of a document that fails its validator.
//! - [`projection`]: find's and `$project`'s projections, and `$addFields`.
//! - [`sort`]: sort patterns, sort keys, and a bounded sorter.
//! - [`update`] and [`diff`]: update operators, and what they changed; [`stored_id`]: what an `_id` may not have in it.
//!
//! Nothing here touches a disk, a clock or a socket: the time and random numbers are passed in.

#![forbid(unsafe_code)]

pub mod diff;
pub mod matcher;
mod name_order;
mod owned;
pub mod path;
pub mod projection;
mod room;
pub mod schema;
pub mod sort;
pub mod stored_id;
mod ticks;
pub mod update;
pub mod validation;
