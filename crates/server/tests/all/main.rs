//! The tests of a running server, in one program: each program more would have the whole server compiled into it, and linked, once more.
#![allow(missing_docs)]

mod arbitrary;
mod by_uuid;
mod command_table;
mod commands;
mod composure;
mod placement;
mod reference;
mod resume;
mod scripts_name_all;
mod session_ends;
mod set;
mod support;
mod timeseries;
mod told;
mod wire;
