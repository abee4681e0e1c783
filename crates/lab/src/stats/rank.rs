//! The Mann-Whitney U test (Wilcoxon's rank sum test), exact for the sample sizes that benchmarks have.

/// Up to this many values on both sides together the distribution is counted out exactly.
const EXACT_LIMIT: usize = 60;

/// Outcome of [`mann_whitney`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankTest {
    /// In how many pairs the value of `a` is larger than that of `b`; ties count half.
    pub u: f64,
    /// Two-sided probability of a U at least this far from its middle, if both sides came from the same source.
    pub p: f64,
}

/// Compares two samples by rank; `None` when one is empty.
///
/// Ties get the mean of their ranks, and the distribution is the one of exactly these ranks, so that the test stays
/// exact with ties. Beyond 60 values in all, the usual normal approximation (with correction for ties) takes over.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<RankTest> {
    if a.is_empty() || b.is_empty() {
        return None;
    }
    let ranks = doubled_ranks(a, b);
    let (n, m) = (a.len(), b.len());
    let sum: usize = ranks[..n].iter().sum();
    let u = sum as f64 / 2.0 - (n * (n + 1)) as f64 / 2.0;
    let p = if n + m <= EXACT_LIMIT { exact_p(&ranks, n, sum) } else { normal_p(&ranks, n, u) };
    Some(RankTest { u, p })
}

/// The smallest two-sided p that `n` values against `m` can reach (no overlap, no ties).
pub fn smallest_p(n: usize, m: usize) -> f64 {
    let arrangements: f64 = (1..=n).map(|i| (m + i) as f64 / i as f64).product();
    (2.0 / arrangements).min(1.0)
}

/// Twice the rank of each value among both samples (twice, so that mean ranks of ties are whole): those of `a` first.
fn doubled_ranks(a: &[f64], b: &[f64]) -> Vec<usize> {
    let values: Vec<f64> = a.iter().chain(b).copied().collect();
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|x, y| values[*x].total_cmp(&values[*y]));
    let mut ranks = vec![0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let mut end = start + 1;
        while end < order.len() && values[order[end]] == values[order[start]] {
            end += 1;
        }
        // Ranks start + 1 ..= end; their mean, doubled, is the sum of the first and the last.
        for position in &order[start..end] {
            ranks[*position] = start + 1 + end;
        }
        start = end;
    }
    ranks
}

/// Share of all choices of `n` of the ranks whose sum is at least as far from the middle as `seen`.
fn exact_p(ranks: &[usize], n: usize, seen: usize) -> f64 {
    let total: usize = ranks.iter().sum();
    // ways[k][s]: choices of k ranks with sum s. As f64: the counts exceed 2^53 only near the limit of 60 values,
    // where a relative error of 1e-16 does not matter.
    let mut ways = vec![vec![0.0_f64; total + 1]; n + 1];
    ways[0][0] = 1.0;
    for (used, rank) in ranks.iter().enumerate() {
        for k in (1..=n.min(used + 1)).rev() {
            let (below, here) = ways.split_at_mut(k);
            for s in (*rank..=total).rev() {
                here[0][s] += below[k - 1][s - rank];
            }
        }
    }
    // The middle of the sums is n * total / ranks.len(); everything is multiplied by ranks.len() to stay whole.
    let distance = |s: usize| (s * ranks.len()).abs_diff(n * total);
    let far: f64 =
        ways[n].iter().enumerate().filter(|(s, _)| distance(*s) >= distance(seen)).map(|(_, w)| w).sum();
    (far / ways[n].iter().sum::<f64>()).min(1.0)
}

fn normal_p(ranks: &[usize], n: usize, u: f64) -> f64 {
    let all = ranks.len() as f64;
    let (n, m) = (n as f64, all - n as f64);
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let ties: f64 = sorted.chunk_by(|x, y| x == y).map(|t| (t.len() as f64).powi(3) - t.len() as f64).sum();
    let variance = n * m / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        return 1.0;
    }
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / variance.sqrt();
    (2.0 * upper_tail(z)).min(1.0)
}

/// Probability that a standard normal value exceeds `z` >= 0 (Abramowitz and Stegun 26.2.17; error below 1e-7).
fn upper_tail(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let factors = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let polynomial = factors.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    polynomial * (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}
