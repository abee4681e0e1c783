//! Zipf-distributed ranks by the method of Gray, Sundaresan, Englert, Baclawski and Weinberger, "Quickly generating
//! billion-record synthetic databases" (SIGMOD 1994), which YCSB uses too.

use super::Random;

/// Terms of the zeta sum that are added one by one; the rest is integrated (Euler and Maclaurin). From here on the
/// first term left out is below 1e-12.
const DIRECT_TERMS: u64 = 512;

/// Draws ranks below a number of items: rank 0 is the most popular, rank `i` comes up in proportion to `1/(i+1)^theta`.
#[derive(Clone, Debug)]
pub struct Zipfian {
    items: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    /// For `items` ranks; `theta` is the skew, strictly between 0 and 1 (0.99 in YCSB).
    pub fn new(items: u64, theta: f64) -> Self {
        assert!(theta > 0.0 && theta < 1.0, "the method wants a skew between 0 and 1");
        let mut made = Zipfian { items: 0, theta, alpha: 1.0 / (1.0 - theta), zeta: 0.0, eta: 0.0 };
        made.resize(items.max(1));
        made
    }

    /// How many ranks there are.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Another number of items, in constant time.
    pub fn resize(&mut self, items: u64) {
        if items == self.items {
            return;
        }
        // A set that grows by single inserts: a few terms more are cheaper than the whole sum.
        if self.items > 0 && items > self.items && items - self.items < 64 {
            self.zeta += (self.items + 1..=items).map(|i| (i as f64).powf(-self.theta)).sum::<f64>();
        } else {
            self.zeta = zeta(items, self.theta);
        }
        self.items = items;
        let zeta2 = 1.0 + 0.5f64.powf(self.theta);
        self.eta = (1.0 - (2.0 / items as f64).powf(1.0 - self.theta)) / (1.0 - zeta2 / self.zeta);
    }

    /// The next rank.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 || self.items == 1 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(self.theta) || self.items == 2 {
            return 1;
        }
        let rank = self.items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.items - 1)
    }
}

/// `1/1^theta + 1/2^theta + ... + 1/n^theta`.
fn zeta(n: u64, theta: f64) -> f64 {
    let term = |i: f64| i.powf(-theta);
    if n <= DIRECT_TERMS {
        return (1..=n).map(|i| term(i as f64)).sum();
    }
    let head: f64 = (1..DIRECT_TERMS).map(|i| term(i as f64)).sum();
    let (from, to) = (DIRECT_TERMS as f64, n as f64);
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    let slope = |i: f64| -theta * i.powf(-theta - 1.0);
    head + integral + (term(from) + term(to)) / 2.0 + (slope(to) - slope(from)) / 12.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_is_the_sum() {
        for (n, theta) in [(1, 0.99), (511, 0.5), (512, 0.99), (513, 0.99), (100_000, 0.99), (100_000, 0.2)] {
            let sum: f64 = (1..=n).map(|i| (i as f64).powf(-theta)).sum();
            assert!((zeta(n, theta) / sum - 1.0).abs() < 1e-12, "{n} {theta}");
        }
        // The constant that YCSB keeps for ten thousand million items.
        assert!((zeta(10_000_000_000, 0.99) - 26.469_028_201_783_02).abs() < 1e-6);
    }

    #[test]
    fn ranks_come_up_as_often_as_the_law_says() {
        let (items, theta, draws) = (1000, 0.99, 1_000_000);
        let zipf = Zipfian::new(items, theta);
        let mut random = Random::new(5);
        let mut counts = vec![0u32; items as usize];
        for _ in 0..draws {
            counts[zipf.next(&mut random) as usize] += 1;
        }
        let sum = zeta(items, theta);
        // The first two ranks are exact in this method, the others within some per cent, sums of them closely.
        for (rank, tolerance) in [(0usize, 0.02), (1, 0.02)] {
            let expected = draws as f64 / ((rank + 1) as f64).powf(theta) / sum;
            assert!((f64::from(counts[rank]) / expected - 1.0).abs() < tolerance, "{rank} {}", counts[rank]);
        }
        for (from, to) in [(2usize, 10usize), (10, 100), (100, 1000)] {
            let seen: u32 = counts[from..to].iter().sum();
            let expected: f64 = (from..to).map(|r| draws as f64 / ((r + 1) as f64).powf(theta) / sum).sum();
            assert!((f64::from(seen) / expected - 1.0).abs() < 0.1, "{from}..{to}: {seen} {expected}");
        }
    }

    #[test]
    fn resizing_equals_starting_afresh() {
        let mut grown = Zipfian::new(10, 0.99);
        for n in (11..2000).chain([5000, 300]) {
            grown.resize(n);
        }
        let fresh = Zipfian::new(300, 0.99);
        assert!((grown.zeta - fresh.zeta).abs() < 1e-9 && (grown.eta - fresh.eta).abs() < 1e-9);
        grown.resize(301);
        assert!((grown.zeta - zeta(301, 0.99)).abs() < 1e-9);
    }

    #[test]
    fn small_sets_stay_within() {
        let mut random = Random::new(9);
        for items in 1..5 {
            let zipf = Zipfian::new(items, 0.99);
            assert!((0..10_000).all(|_| zipf.next(&mut random) < items));
        }
    }
}
