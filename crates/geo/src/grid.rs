//! The grid of a `2d` index: squares, numbered along a curve that keeps neighbours together (Morton's).

use sheaf_bson::RawDoc;
use sheaf_errors::{Code, Result, bail};

use crate::indexing::KeyRange;
use crate::plane::PlaneBox;
use crate::point::PlanePoint;

/// Ranges of keys for one box, at most.
const RANGES: usize = 24;

/// A square of the plane, cut into `2^bits` by `2^bits` squares.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Grid {
    bits: u32,
    min: f64,
    max: f64,
}

/// A square of the curve: the first of its numbers, and how many bits of them are the square's own.
#[derive(Clone, Copy)]
struct Square {
    x: u32,
    y: u32,
    level: u32,
}

impl Grid {
    pub(crate) fn new(bits: u32, min: f64, max: f64) -> Grid {
        Grid { bits, min, max }
    }

    /// The key of a point that is written as an array or document.
    ///
    /// Errors: 13026, 13027, 13068.
    pub(crate) fn key_of(&self, place: RawDoc<'_>) -> Result<i64> {
        let mut numbers = place.values();
        let mut number = || match numbers.next() {
            None => bail!(13068, "geo field only has 1 element"),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(number),
                None => bail!(
                    13026,
                    "geo values must be 'legacy coordinate pairs' for 2d indexes, but got {}",
                    sheaf_bson::document_text(place)
                ),
            },
        };
        let point = PlanePoint { x: number()?, y: number()? };
        self.check_for(point, Code(13027))?;
        Ok(self.key_of_point(point))
    }

    /// The key of a point on the grid.
    pub(crate) fn key_of_point(&self, point: PlanePoint) -> i64 {
        key(interleave(self.cut(self.scaled(point.x)), self.cut(self.scaled(point.y))))
    }

    /// The side of the smallest square that holds two points, one of which is given by its key.
    pub(crate) fn size_of_common(&self, point: PlanePoint, other: i64) -> f64 {
        let differ = (self.key_of_point(point) ^ other).leading_zeros();
        (self.max - self.min) / f64::from(1u32 << (differ / 2).min(self.bits).min(31))
    }

    /// Checks that the point of a query is on the grid.
    ///
    /// Errors: 16433.
    pub(crate) fn check(&self, point: PlanePoint) -> Result<()> {
        self.check_for(point, Code(16433))
    }

    fn check_for(&self, point: PlanePoint, code: Code) -> Result<()> {
        for n in [point.x, point.y] {
            if !(self.min..=self.max).contains(&n) {
                bail!(
                    code,
                    "point not in interval of [ {}, {} ] :: caused by :: {{ x: {}, y: {} }}",
                    self.min,
                    self.max,
                    point.x,
                    point.y
                );
            }
        }
        Ok(())
    }

    /// A coordinate as a fraction of the grid's side, in units of 2^-32.
    fn scaled(&self, n: f64) -> u32 {
        // What is too large for the type becomes its largest value.
        ((n - self.min) / (self.max - self.min) * 4_294_967_296.0) as u32
    }

    fn cut(&self, scaled: u32) -> u32 {
        scaled & (u32::MAX << (32 - self.bits))
    }

    /// The distance from a point to the farthest corner, and a bit.
    pub(crate) fn reach(&self, from: PlanePoint) -> f64 {
        let side = |n: f64| (n - self.min).abs().max((n - self.max).abs());
        side(from.x).hypot(side(from.y)) * (1.0 + 1e-9)
    }

    /// The keys of the points in a box, and some more.
    pub(crate) fn ranges(&self, region: PlaneBox) -> Vec<KeyRange> {
        let outside = |low: f64, high: f64| high < self.min || low > self.max;
        if outside(region.min.x, region.max.x) || outside(region.min.y, region.max.y) {
            return Vec::new();
        }
        let low = |n: f64| self.scaled(n).saturating_sub(1);
        let high = |n: f64| self.scaled(n).saturating_add(1);
        let x = (low(region.min.x), high(region.max.x));
        let y = (low(region.min.y), high(region.max.y));
        let mut squares = vec![Square { x: 0, y: 0, level: 0 }];
        for level in 0..self.bits {
            let mut finer = Vec::with_capacity(squares.len() * 4);
            for square in &squares {
                if square.level < level || square.is_within(x, y) {
                    finer.push(*square);
                } else {
                    finer.extend(square.quarters().into_iter().filter(|quarter| quarter.meets(x, y)));
                }
            }
            if finer.len() > RANGES {
                break;
            }
            squares = finer;
        }
        squares.iter().map(|square| square.keys()).collect()
    }
}

impl Square {
    /// The greatest offset within a side.
    fn span(&self) -> u32 {
        if self.level == 0 { u32::MAX } else { (1u32 << (32 - self.level)) - 1 }
    }

    fn meets(&self, x: (u32, u32), y: (u32, u32)) -> bool {
        let span = self.span();
        self.x <= x.1 && x.0 <= self.x + span && self.y <= y.1 && y.0 <= self.y + span
    }

    fn is_within(&self, x: (u32, u32), y: (u32, u32)) -> bool {
        let span = self.span();
        x.0 <= self.x && self.x + span <= x.1 && y.0 <= self.y && self.y + span <= y.1
    }

    fn quarters(&self) -> [Square; 4] {
        let half = 1u32 << (31 - self.level);
        let level = self.level + 1;
        [(0, 0), (0, half), (half, 0), (half, half)].map(|(dx, dy)| Square {
            x: self.x + dx,
            y: self.y + dy,
            level,
        })
    }

    fn keys(&self) -> KeyRange {
        let span = self.span();
        (key(interleave(self.x, self.y)), key(interleave(self.x + span, self.y + span)))
    }
}

/// The bits of both numbers in turn, x first.
fn interleave(x: u32, y: u32) -> u64 {
    spread(x) << 1 | spread(y)
}

fn spread(n: u32) -> u64 {
    let mut n = u64::from(n);
    n = (n | n << 16) & 0x0000_FFFF_0000_FFFF;
    n = (n | n << 8) & 0x00FF_00FF_00FF_00FF;
    n = (n | n << 4) & 0x0F0F_0F0F_0F0F_0F0F;
    n = (n | n << 2) & 0x3333_3333_3333_3333;
    (n | n << 1) & 0x5555_5555_5555_5555
}

/// A number of the curve as a key: in the same order, with a sign.
fn key(number: u64) -> i64 {
    (number ^ 1 << 63) as i64
}
