//! Cells of S2: which cover a geometry, and which keys those have whose cells may meet a region.
//!
//! A geometry's keys are the cells that cover it. A region is covered with cells too; what meets it has a key that is one of
//! these, or below one (a range of keys), or above one (a key for each level above).

use s2rst::s1::Angle;
use s2rst::s2::region_coverer::RegionCoverer;
use s2rst::s2::{Cap, Cell, CellId, Point, Rect, Region};

use crate::indexing::KeyRange;
use crate::shape::Shape;

/// Cells of one geometry, at most, more or less.
const CELLS_OF_GEOMETRY: usize = 20;
/// Cells of the region of a query.
const CELLS_OF_REGION: usize = 16;
/// What rings are made wider by, so that nothing falls between two of them.
const MARGIN: f64 = 1e-9;

fn key(cell: CellId) -> i64 {
    cell.id() as i64
}

fn coverer(coarsest: u8, finest: u8, cells: usize) -> RegionCoverer {
    RegionCoverer::new().min_level(coarsest).max_level(finest).max_cells(cells)
}

/// Adds the keys of a geometry. Points are leaf cells.
pub(crate) fn put_covering(shape: &Shape, coarsest: u8, finest: u8, out: &mut Vec<i64>) {
    out.extend(shape.points.iter().map(|point| key(CellId::from_point(point))));
    let parts = shape.lines.len() + shape.areas.len();
    let coverer = coverer(coarsest, finest, (CELLS_OF_GEOMETRY / parts.max(1)).max(4));
    each_region(shape, &mut |region| {
        out.extend(coverer.covering(region).cell_ids().iter().map(|cell| key(*cell)));
    });
    out.sort_unstable();
    out.dedup();
}

fn each_region(shape: &Shape, visit: &mut dyn FnMut(&dyn Region)) {
    shape.lines.iter().for_each(|line| visit(line));
    shape.areas.iter().for_each(|area| visit(area.polygon()));
}

/// The keys whose cells may meet a shape.
pub(crate) fn ranges_of_shape(shape: &Shape) -> Vec<KeyRange> {
    let mut ranges = Vec::new();
    for point in &shape.points {
        put_ranges(CellId::from_point(point), &mut ranges);
    }
    each_region(shape, &mut |region| put_region(region, &mut ranges));
    ranges
}

/// The keys whose cells may meet a region.
pub(crate) fn ranges_of(region: &dyn Region) -> Vec<KeyRange> {
    let mut ranges = Vec::new();
    put_region(region, &mut ranges);
    ranges
}

fn put_region(region: &dyn Region, ranges: &mut Vec<KeyRange>) {
    for cell in coverer(0, 30, CELLS_OF_REGION).covering(region).cell_ids() {
        put_ranges(*cell, ranges);
    }
    ranges.sort_unstable();
    ranges.dedup();
}

fn put_ranges(cell: CellId, ranges: &mut Vec<KeyRange>) {
    ranges.push((key(cell.range_min()), key(cell.range_max())));
    let mut above = cell;
    while !above.is_face() {
        above = above.parent();
        ranges.push((key(above), key(above)));
    }
}

/// The key of a point.
pub(crate) fn key_of_point(point: Point) -> i64 {
    key(CellId::from_point(&point))
}

/// The side of the smallest cell that holds a point and the cell of a key, as an angle; `None` if there is none.
pub(crate) fn size_of_common(point: Point, other: i64) -> Option<f64> {
    /// The side of a face of the cube, on average.
    const FACE: f64 = 1.459;
    let level = CellId::from_point(&point).common_ancestor_level(CellId(other as u64))?;
    Some(FACE / f64::from(1u32 << u8::from(level)))
}

/// A cap of this radius; all of the sphere if that is large.
pub(crate) fn cap(center: Point, angle: f64) -> Cap {
    Cap::from_center_angle(center, Angle::from_radians((angle + MARGIN).min(std::f64::consts::PI)))
}

/// What is farther from a point than one distance and not farther than another.
#[derive(Debug)]
pub(crate) struct Ring {
    outer: Cap,
    /// What is certainly too near.
    hole: Option<Cap>,
}

impl Ring {
    pub(crate) fn new(center: Point, inner: f64, outer: f64) -> Ring {
        let inner = inner - 2.0 * MARGIN;
        let hole = (inner > 0.0).then(|| Cap::from_center_angle(center, Angle::from_radians(inner)));
        Ring { outer: cap(center, outer), hole }
    }
}

impl Region for Ring {
    fn cap_bound(&self) -> Cap {
        self.outer
    }

    fn rect_bound(&self) -> Rect {
        self.outer.rect_bound()
    }

    fn cell_union_bound(&self) -> Vec<CellId> {
        self.outer.cell_union_bound()
    }

    fn contains_cell(&self, cell: &Cell) -> bool {
        self.outer.contains(cell.cap_bound())
            && self.hole.is_none_or(|hole| !hole.intersects(cell.cap_bound()))
    }

    fn intersects_cell(&self, cell: &Cell) -> bool {
        self.outer.intersects(cell.cap_bound())
            && self.hole.is_none_or(|hole| !hole.contains(cell.cap_bound()))
    }

    fn contains_point(&self, point: &Point) -> bool {
        self.outer.contains_point(*point) && self.hole.is_none_or(|hole| !hole.contains_point(*point))
    }
}
