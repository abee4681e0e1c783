//! Experiments: what is started, what is done to it, and in which variations.

mod settings;

pub use settings::Settings;
