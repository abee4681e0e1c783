//! SplitMix64 (Steele, Lea and Flood, 2014): eight bytes of state, the same numbers on every machine and in every
//! version, which general-purpose generators do not promise.

/// A reproducible source of random numbers. Each client has its own.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The generator of one client among many: streams of different clients have nothing to do with each other.
    pub fn for_client(seed: u64, client: usize) -> Self {
        Random(super::mix(seed ^ super::mix(client as u64 + 1)))
    }

    /// The next 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..limit`; 0 when there is nothing to choose from.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        // The high half of the product; what it favours is below 2^-32 for any limit that we meet.
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// An exponentially distributed number with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// Chooses an index by weight. The weights must not all be zero.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        assert!(total > 0, "weights that are all zero choose nothing");
        let mut left = self.below(total);
        for (index, &weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(weight)) {
                Some(rest) => left = rest,
                None => return index,
            }
        }
        unreachable!("the draw is below the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // From the published reference implementation with seed 1234567.
        let mut random = Random::new(1_234_567);
        let seen: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(seen, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn below_is_even_and_within() {
        let mut random = Random::new(7);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn exponential_has_its_mean_and_median() {
        let mut random = Random::new(11);
        let mut draws: Vec<f64> = (0..100_000).map(|_| random.exponential(50_000.0)).collect();
        draws.sort_by(f64::total_cmp);
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean / 50_000.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((draws[50_000] / (50_000.0 * 2f64.ln()) - 1.0).abs() < 0.02, "{}", draws[50_000]);
    }

    #[test]
    fn weights_are_kept_and_zero_is_never_chosen() {
        let mut random = Random::new(3);
        let mut counts = [0u32; 3];
        for _ in 0..110_000 {
            counts[random.weighted(&[10, 0, 1])] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((9_500..10_500).contains(&counts[2]), "{counts:?}");
    }

    #[test]
    fn clients_draw_different_numbers() {
        let firsts: std::collections::BTreeSet<u64> =
            (0..1000).map(|client| Random::for_client(1, client).bits()).collect();
        assert_eq!(firsts.len(), 1000);
    }
}
