//! How long values are.

use std::str::FromStr;

use super::Random;

/// What a document may hold besides its body: the limit of 16 MB less names and numbers.
const LARGEST: usize = 16 * 1024 * 1024 - 4096;

/// A distribution of sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// Always the same: `fixed:1000`.
    Fixed(usize),
    /// All between two bounds alike, both included: `uniform:100:200`.
    Uniform(usize, usize),
    /// A floor and, on top of it, an exponentially distributed rest, as basho_bench's `exponential_bin`:
    /// `exponential:4098:50000`.
    Exponential {
        /// The smallest size.
        floor: usize,
        /// Mean of what comes on top of the floor.
        mean: f64,
    },
}

impl Sizes {
    /// The next size; never more than a document can hold.
    pub fn next(&self, random: &mut Random) -> usize {
        let size = match *self {
            Sizes::Fixed(size) => size,
            Sizes::Uniform(least, most) => least + random.below((most - least + 1) as u64) as usize,
            Sizes::Exponential { floor, mean } => floor + random.exponential(mean) as usize,
        };
        size.min(LARGEST)
    }

    /// The average size.
    pub fn mean(&self) -> f64 {
        match *self {
            Sizes::Fixed(size) => size as f64,
            Sizes::Uniform(least, most) => (least + most) as f64 / 2.0,
            Sizes::Exponential { floor, mean } => floor as f64 + mean,
        }
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, numbers) = text.split_once(':').unwrap_or((text, ""));
        let numbers = numbers
            .split(':')
            .filter(|part| !part.is_empty())
            .map(|part| part.parse::<usize>().map_err(|_| format!("{text}: {part} is not a number of bytes")))
            .collect::<Result<Vec<usize>, String>>()?;
        match (name, numbers.as_slice()) {
            ("fixed", &[size]) if size <= LARGEST => Ok(Sizes::Fixed(size)),
            ("uniform", &[least, most]) if least <= most && most <= LARGEST => {
                Ok(Sizes::Uniform(least, most))
            }
            ("exponential", &[floor, mean]) if floor <= LARGEST => {
                Ok(Sizes::Exponential { floor, mean: mean as f64 })
            }
            _ => Err(format!(
                "{text}: not a distribution of sizes below 16 MB; there are fixed:BYTES, uniform:LEAST:MOST and \
                 exponential:FLOOR:MEAN"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_their_bounds_and_means() {
        for text in ["fixed:1000", "uniform:100:200", "exponential:4098:50000"] {
            let sizes: Sizes = text.parse().expect(text);
            let mut random = Random::new(1);
            let draws: Vec<usize> = (0..100_000).map(|_| sizes.next(&mut random)).collect();
            let mean = draws.iter().sum::<usize>() as f64 / draws.len() as f64;
            assert!((mean / sizes.mean() - 1.0).abs() < 0.02, "{text}: {mean}");
            let (least, most) = (draws.iter().min().unwrap(), draws.iter().max().unwrap());
            match sizes {
                Sizes::Fixed(n) => assert_eq!((least, most), (&n, &n)),
                Sizes::Uniform(a, b) => assert_eq!((*least, *most), (a, b)),
                Sizes::Exponential { floor, .. } => assert!((floor..floor + 10).contains(least), "{least}"),
            }
        }
    }

    #[test]
    fn no_size_is_larger_than_a_document() {
        let sizes = Sizes::Exponential { floor: 4098, mean: 1e9 };
        let mut random = Random::new(1);
        assert!((0..1000).all(|_| sizes.next(&mut random) <= LARGEST));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "fixed", "fixed:x", "fixed:17000000", "uniform:2:1", "exponential:4098", "1000"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
