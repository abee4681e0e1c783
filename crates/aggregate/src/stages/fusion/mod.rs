//! Stages that are short for others and bring several rankings of one collection together: `$rankFusion`, `$scoreFusion`, and
//! `$score`, which gives the latter its scores.

mod inputs;
pub mod rank_fusion;
pub mod score;
pub mod score_fusion;
