use hdrhistogram::Histogram;
use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

#[test]
fn summaries_by_hand() {
    let s = summary(&[5.0, 1.0, 3.0, f64::NAN, 100.0]).unwrap();
    assert_eq!((s.n, s.median, s.min, s.max), (4, 4.0, 1.0, 100.0));
    // Deviations from 4: 1, 3, 1, 96.
    assert_eq!(s.mad, 2.0);
    assert_eq!(summary(&[]), None);
    assert_eq!(median(&[2.0]), Some(2.0));
}

#[test]
fn known_rank_tests() {
    // Without overlap, 4 against 4: 2 of the 70 arrangements are this extreme.
    let test = mann_whitney(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]).unwrap();
    assert_eq!(test.u, 0.0);
    assert!((test.p - 2.0 / 70.0).abs() < 1e-12);
    // Equal samples are as undecided as can be.
    assert_eq!(mann_whitney(&[3.0; 5], &[3.0; 5]).unwrap().p, 1.0);
    // The tables give 0.0556 for U = 3 with 5 against 5.
    let a = [1.0, 2.0, 3.0, 4.0, 8.0];
    let b = [5.0, 6.0, 7.0, 9.0, 10.0];
    let test = mann_whitney(&a, &b).unwrap();
    assert_eq!(test.u, 3.0);
    assert!((test.p - 14.0 / 252.0).abs() < 1e-12, "{}", test.p);
    assert_eq!(mann_whitney(&[], &b), None);
}

#[test]
fn few_repetitions_are_called_few() {
    assert!(
        matches!(compare(&[1.0, 1.1, 1.2], &[9.0, 9.1, 9.2]), Verdict::TooFew { smallest_p } if smallest_p == 0.1)
    );
    assert!(compare(&[1.0], &[9.0]).text().contains("too few repetitions"));
    assert!(matches!(compare(&[1.0, 1.1, 1.2, 1.3], &[9.0, 9.1, 9.2, 9.3]), Verdict::Different { .. }));
    assert!(matches!(compare(&[1.0, 1.1, 1.2, 1.3], &[1.05, 1.15, 1.0, 1.25]), Verdict::Undecided { .. }));
    // Unequal sides can reach it with three on one: 2 of 56 arrangements.
    assert!(matches!(compare(&[1.0, 1.1, 1.2], &[9.0, 9.1, 9.2, 9.3, 9.4]), Verdict::Different { .. }));
    assert_eq!(compare(&[], &[1.0]), Verdict::NoValues);
}

#[test]
fn ratio_intervals_hold_the_ratio_and_repeat_from_a_seed() {
    let a = [100.0, 104.0, 98.0, 101.0, 99.0];
    let b = [203.0, 199.0, 207.0, 190.0, 200.0];
    let found = ratio(&a, &b, &mut StdRng::seed_from_u64(7)).unwrap();
    assert_eq!(found.ratio, 2.0);
    assert!(found.low < 2.0 && found.low > 1.8, "{found:?}");
    assert!(found.high > 2.0 && found.high < 2.15, "{found:?}");
    assert_eq!(found, ratio(&a, &b, &mut StdRng::seed_from_u64(7)).unwrap());
    assert_eq!(ratio(&[0.0], &[1.0], &mut StdRng::seed_from_u64(7)), None);
    assert_eq!(ratio(&[], &[1.0], &mut StdRng::seed_from_u64(7)), None);
}

#[test]
fn large_samples_use_the_normal_approximation() {
    let a: Vec<f64> = (0..40).map(f64::from).collect();
    let b: Vec<f64> = (0..40).map(|i| f64::from(i) + 0.5).collect();
    let near = mann_whitney(&a, &b).unwrap();
    assert!(near.p > 0.8 && near.p <= 1.0, "{near:?}");
    let c: Vec<f64> = (0..40).map(|i| f64::from(i) + 20.0).collect();
    assert!(mann_whitney(&a, &c).unwrap().p < 1e-6);
    assert_eq!(mann_whitney(&[1.0; 40], &[1.0; 40]).unwrap().p, 1.0);
}

#[test]
fn curves_end_at_the_worst_value() {
    let mut histogram = Histogram::<u64>::new(3).unwrap();
    for us in 1..=1000_u64 {
        histogram.record(us * 1000).unwrap();
    }
    let curve = percentile_curve(&histogram);
    assert_eq!(curve[0].quantile, 0.0);
    let last = curve.last().unwrap();
    assert_eq!((last.quantile, last.inverse), (1.0, 1000.0));
    assert!((last.us - 1000.0).abs() <= 1.0);
    let nine = curve.iter().find(|p| (p.inverse - 10.0).abs() < 1e-6).unwrap();
    assert!((nine.us - 900.0).abs() < 2.0, "{nine:?}");
    assert!(curve.windows(2).all(|w| w[0].us <= w[1].us && w[0].inverse < w[1].inverse));
    assert!(percentile_curve(&decode_histogram("").unwrap()).is_empty());
}

#[test]
fn broken_histograms_are_errors() {
    assert!(decode_histogram("not base64!").is_err());
    assert!(decode_histogram("AAAA").is_err());
}

/// All ways to choose `n` of the values as side `a`, naively: the share at least as far from the middle as seen.
fn permutation_p(a: &[f64], b: &[f64]) -> f64 {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let u_of = |mask: u32| -> f64 {
        let mut u = 0.0;
        for i in (0..all.len()).filter(|i| mask & (1 << i) != 0) {
            for j in (0..all.len()).filter(|j| mask & (1 << j) == 0) {
                u += if all[i] > all[j] {
                    1.0
                } else if all[i] == all[j] {
                    0.5
                } else {
                    0.0
                };
            }
        }
        u
    };
    let middle = (a.len() * b.len()) as f64 / 2.0;
    let seen = (u_of((1 << a.len()) - 1) - middle).abs();
    let masks: Vec<u32> = (0..1_u32 << all.len()).filter(|m| m.count_ones() as usize == a.len()).collect();
    masks.iter().filter(|m| (u_of(**m) - middle).abs() >= seen - 1e-9).count() as f64 / masks.len() as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exact_p_is_the_share_of_permutations(
        a in prop::collection::vec(0_i32..8, 1..6),
        b in prop::collection::vec(0_i32..8, 1..6),
    ) {
        let a: Vec<f64> = a.into_iter().map(f64::from).collect();
        let b: Vec<f64> = b.into_iter().map(f64::from).collect();
        let fast = mann_whitney(&a, &b).unwrap();
        prop_assert!((fast.p - permutation_p(&a, &b)).abs() < 1e-9);
        let swapped = mann_whitney(&b, &a).unwrap();
        prop_assert!((fast.p - swapped.p).abs() < 1e-9);
        prop_assert!((fast.u + swapped.u - (a.len() * b.len()) as f64).abs() < 1e-9);
    }

    #[test]
    fn merging_is_recording_into_one(
        first in prop::collection::vec(1_u64..60_000_000_000, 0..60),
        second in prop::collection::vec(1_u64..60_000_000_000, 0..60),
    ) {
        let make = |values: &[u64]| {
            let mut histogram = Histogram::<u64>::new(3).unwrap();
            values.iter().for_each(|v| histogram.record(*v).unwrap());
            histogram
        };
        let texts = [encode_histogram(&make(&first)).unwrap(), encode_histogram(&make(&second)).unwrap()];
        let merged = merge_histograms(texts.iter().map(String::as_str)).unwrap();
        let both = make(&[first, second].concat());
        prop_assert_eq!(merged.len(), both.len());
        for step in 0..=100 {
            let quantile = f64::from(step) / 100.0;
            prop_assert_eq!(merged.value_at_quantile(quantile), both.value_at_quantile(quantile));
        }
    }
}
