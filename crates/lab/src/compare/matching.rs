//! Which row of one run belongs to which of the other.

use crate::results::Row;

/// Rows that belong together, and those that stay alone (by name and target).
pub struct Matched<'a> {
    pub pairs: Vec<(&'a Row, &'a Row)>,
    pub only_a: Vec<String>,
    pub only_b: Vec<String>,
}

/// Pairs rows of the same variation: of the same target first, then of the same program in another version, then
/// whatever is left of that variation (Sheaf in one run, mongod in the other).
pub fn pairs<'a>(a: &'a [Row], b: &'a [Row]) -> Matched<'a> {
    let same_variation = |x: &Row, y: &Row| x.name == y.name && x.variation == y.variation;
    let rules: [fn(&Row, &Row) -> bool; 3] =
        [|x, y| x.target == y.target, |x, y| program(x) == program(y), |_, _| true];
    let mut partner: Vec<Option<usize>> = vec![None; a.len()];
    let mut taken = vec![false; b.len()];
    for rule in rules {
        for (i, x) in a.iter().enumerate().filter(|(i, _)| partner[*i].is_none()).collect::<Vec<_>>() {
            let fits = |j: &usize| !taken[*j] && same_variation(x, &b[*j]) && rule(x, &b[*j]);
            if let Some(j) = (0..b.len()).find(fits) {
                partner[i] = Some(j);
                taken[j] = true;
            }
        }
    }
    let named = |row: &Row| format!("\"{}\" on {}", row.name, row.target);
    Matched {
        pairs: a.iter().zip(&partner).filter_map(|(x, j)| Some((x, &b[(*j)?]))).collect(),
        only_a: a.iter().zip(&partner).filter(|(_, j)| j.is_none()).map(|(x, _)| named(x)).collect(),
        only_b: b.iter().zip(&taken).filter(|(_, taken)| !**taken).map(|(y, _)| named(y)).collect(),
    }
}

/// "mongod" of "mongod 8.2.1".
fn program(row: &Row) -> &str {
    row.target.split_whitespace().next().unwrap_or("")
}
