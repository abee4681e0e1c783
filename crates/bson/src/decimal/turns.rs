//! Whole turns are taken away from angles that are so large that dividing by a turn would leave nothing of them.

/// The digits behind the point of 1/(2 pi): as many as the largest exponent and what stands below ask for. Of pi they were
/// computed once, by Machin's formula in whole numbers.
const INVERSE_TURN: &str = include_str!("inverse_turn.txt");

/// What a limb holds: nine digits.
const LIMB: u64 = 1_000_000_000;

/// Limbs that are looked at: those of a coefficient, and three times as many for what is left.
const LIMBS: usize = 14;

/// The part of a turn, as its digits behind the point, that `coefficient * 10^exponent` is away from a whole number of turns. Whole
/// multiples of the coefficient are whole turns, so only the digits from the exponent on matter.
pub(super) fn part_of_turn(coefficient: u128, exponent: i32) -> String {
    let mut digits = INVERSE_TURN.bytes().filter(u8::is_ascii_digit).skip(exponent.max(0) as usize);
    let mut zeros = exponent.min(0);
    let mut next = || match zeros {
        0 => digits.next().map_or(0, |digit| u64::from(digit - b'0')),
        _ => {
            zeros += 1;
            0
        }
    };
    let window: [u64; LIMBS] = std::array::from_fn(|_| (0..9).fold(0, |limb, _| 10 * limb + next()));
    let factor: [u64; 5] =
        std::array::from_fn(|at| (coefficient / u128::from(LIMB).pow(at as u32) % u128::from(LIMB)) as u64);
    let mut product = [0; LIMBS];
    // The last limb stands for the least digits; what is carried out of the first is whole turns.
    for (power, factor) in factor.iter().enumerate() {
        let mut carry = 0;
        for at in (power..LIMBS).rev() {
            let sum = product[at - power] + window[at] * factor + carry;
            (product[at - power], carry) = (sum % LIMB, sum / LIMB);
        }
    }
    product.iter().map(|limb| format!("{limb:09}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_is_as_many_turns_as_its_digits_say() {
        // 1/(2 pi) is 0.15915494309189533576888...
        assert!(part_of_turn(1, 0).starts_with("15915494309189533576888"));
        assert!(part_of_turn(10, 0).starts_with("59154943091895335768883"));
        assert!(part_of_turn(1, 5).starts_with("494309189533576888"));
        assert!(part_of_turn(1, -3).starts_with("00015915494309189533"));
        // 7 * 0.15915494309189533576 = 1.11408460164326735
        assert!(part_of_turn(7, 0).starts_with("1140846016432673503"));
    }

    #[test]
    fn large_coefficients_and_powers_agree() {
        let coefficient = 10u128.pow(33);
        for power in [0, 7, 100, 4000] {
            assert_eq!(part_of_turn(coefficient, power)[..85], part_of_turn(1, power + 33)[..85]);
        }
    }

    #[test]
    fn there_are_digits_for_the_largest_decimal() {
        let digits = INVERSE_TURN.bytes().filter(u8::is_ascii_digit).count();
        assert!(digits >= 6111 + 9 * LIMBS, "{digits}");
    }
}
