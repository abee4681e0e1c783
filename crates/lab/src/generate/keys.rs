//! Which of the existing keys an operation is for.

use std::str::FromStr;

use super::{Random, Zipfian, mix};

/// The skew that YCSB uses where nothing else is said.
pub const DEFAULT_THETA: f64 = 0.99;

/// Scrambled ranks are drawn from this many, so that the popular keys stay the same while the set grows (as in YCSB).
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// How keys are chosen among `0..count`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All alike: `uniform`.
    Uniform,
    /// The lower the more popular: `zipfian`, `zipfian:0.8`.
    Zipfian(f64),
    /// As popular, but spread over the whole range by a hash: `scrambled`, `scrambled:0.8`.
    Scrambled(f64),
    /// The newest are the most popular: `latest`, `latest:0.8`.
    Latest(f64),
    /// One after the other; clients share the range out among them: `sequential`.
    Sequential,
    /// A part of the keys gets a part of the operations: `hotspot:0.2:0.8`.
    Hotspot {
        /// Part of the keys that is hot; they are the first ones.
        keys: f64,
        /// Part of the operations that go to it.
        operations: f64,
    },
}

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers = parts
            .map(|part| part.parse::<f64>().map_err(|_| format!("{text}: {part} is not a number")))
            .collect::<Result<Vec<f64>, String>>()?;
        let theta = match numbers.first() {
            None => DEFAULT_THETA,
            Some(&theta) if theta > 0.0 && theta < 1.0 => theta,
            Some(_) if name == "hotspot" => DEFAULT_THETA,
            Some(_) => return Err(format!("{text}: the skew must be between 0 and 1")),
        };
        match (name, numbers.as_slice()) {
            ("uniform", []) => Ok(Distribution::Uniform),
            ("sequential", []) => Ok(Distribution::Sequential),
            ("zipfian", [] | [_]) => Ok(Distribution::Zipfian(theta)),
            ("scrambled", [] | [_]) => Ok(Distribution::Scrambled(theta)),
            ("latest", [] | [_]) => Ok(Distribution::Latest(theta)),
            ("hotspot", &[keys, operations])
                if (0.0..=1.0).contains(&keys) && (0.0..=1.0).contains(&operations) =>
            {
                Ok(Distribution::Hotspot { keys, operations })
            }
            _ => Err(format!(
                "{text}: not a distribution of keys; there are uniform, zipfian[:skew], scrambled[:skew], \
                 latest[:skew], sequential and hotspot:KEYS:OPERATIONS"
            )),
        }
    }
}

/// Chooses keys for one client.
#[derive(Clone, Debug)]
pub struct KeyChooser {
    distribution: Distribution,
    zipf: Option<Zipfian>,
    position: u64,
    stride: u64,
}

impl KeyChooser {
    /// The chooser of the `client`-th of `clients`.
    pub fn new(distribution: Distribution, client: usize, clients: usize) -> Self {
        let zipf = match distribution {
            Distribution::Zipfian(theta) | Distribution::Latest(theta) => Some(Zipfian::new(1, theta)),
            Distribution::Scrambled(theta) => Some(Zipfian::new(SCRAMBLED_ITEMS, theta)),
            Distribution::Uniform | Distribution::Sequential | Distribution::Hotspot { .. } => None,
        };
        KeyChooser { distribution, zipf, position: client as u64, stride: clients.max(1) as u64 }
    }

    /// A key below `count` (0 when there is none). `count` may grow from call to call.
    pub fn next(&mut self, random: &mut Random, count: u64) -> u64 {
        match (self.distribution, &mut self.zipf) {
            (Distribution::Zipfian(_), Some(zipf)) => {
                zipf.resize(count.max(1));
                zipf.next(random)
            }
            (Distribution::Latest(_), Some(zipf)) => {
                zipf.resize(count.max(1));
                count.saturating_sub(1) - zipf.next(random).min(count.saturating_sub(1))
            }
            (Distribution::Scrambled(_), Some(zipf)) => mix(zipf.next(random)) % count.max(1),
            (Distribution::Sequential, _) => {
                let key = self.position % count.max(1);
                self.position += self.stride;
                key
            }
            (Distribution::Hotspot { keys, operations }, _) => {
                let hot = ((count as f64 * keys) as u64).min(count);
                if hot > 0 && (hot == count || random.unit() < operations) {
                    random.below(hot)
                } else {
                    hot + random.below(count - hot)
                }
            }
            (Distribution::Uniform, _) | (_, None) => random.below(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(text: &str, count: u64, draws: usize) -> Vec<u32> {
        let mut chooser = KeyChooser::new(text.parse().expect(text), 0, 1);
        let mut random = Random::new(42);
        let mut counts = vec![0u32; count as usize];
        for _ in 0..draws {
            counts[chooser.next(&mut random, count) as usize] += 1;
        }
        counts
    }

    #[test]
    fn every_distribution_stays_below_the_count() {
        for text in
            ["uniform", "zipfian", "scrambled", "latest", "sequential", "hotspot:0.2:0.8", "hotspot:0:1"]
        {
            for count in [1, 2, 3, 100] {
                assert_eq!(draw(text, count, 2000).iter().sum::<u32>(), 2000, "{text} {count}");
            }
            let mut chooser = KeyChooser::new(text.parse().unwrap(), 3, 4);
            assert_eq!(chooser.next(&mut Random::new(1), 0), 0, "{text}");
        }
    }

    #[test]
    fn uniform_is_even() {
        assert!(draw("uniform", 10, 100_000).iter().all(|&n| (9_500..10_500).contains(&n)));
    }

    #[test]
    fn latest_mirrors_zipfian() {
        let (mut latest, zipfian) = (draw("latest", 500, 100_000), draw("zipfian", 500, 100_000));
        latest.reverse();
        assert_eq!(latest, zipfian);
        assert!(zipfian[0] > 12_000 && zipfian[0] > zipfian[1] && zipfian[1] > zipfian[10]);
    }

    #[test]
    fn scrambled_is_as_skewed_but_spread() {
        let counts = draw("scrambled", 1000, 200_000);
        let popular = counts.iter().position(|n| n == counts.iter().max().unwrap()).unwrap();
        // One draw in 26.47 is for the most popular rank, whatever the number of keys.
        assert!((7_000..8_500).contains(&counts[popular]), "{}", counts[popular]);
        assert_eq!(popular as u64, mix(0) % 1000);
        let (low, high) = counts.split_at(500);
        let (low, high) = (low.iter().sum::<u32>(), high.iter().sum::<u32>());
        assert!(low > 40_000 && high > 40_000, "{low} {high}");
    }

    #[test]
    fn hotspot_keeps_its_shares() {
        let counts = draw("hotspot:0.2:0.8", 100, 100_000);
        let hot: u32 = counts[..20].iter().sum();
        assert!((79_000..81_000).contains(&hot), "{hot}");
    }

    #[test]
    fn sequential_clients_cover_everything_once() {
        let mut counts = [0; 100];
        for client in 0..4 {
            let mut chooser = KeyChooser::new(Distribution::Sequential, client, 4);
            (0..25).for_each(|_| counts[chooser.next(&mut Random::new(0), 100) as usize] += 1);
        }
        assert_eq!(counts, [1; 100]);
    }

    #[test]
    fn what_is_not_a_distribution_is_refused() {
        for text in
            ["", "zipf", "zipfian:1", "zipfian:x", "uniform:1", "hotspot:0.2", "hotspot:2:0.5", "latest:1:2"]
        {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
