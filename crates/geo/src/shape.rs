//! Shapes on the sphere, and how they lie to each other.

use s2rst::s1::Angle;
use s2rst::s2::boolean_operation::{Options, PolygonModel, S2BooleanOperation};
use s2rst::s2::edge_distances::distance_from_segment;
use s2rst::s2::lax_polygon::LaxPolygon;
use s2rst::s2::polyline::Polyline;
use s2rst::s2::shape_index::ShapeIndex;
use s2rst::s2::{Cap, Cell, CellId, Point, Polygon, Region};

use crate::point::PlanePoint;

/// How far from an edge a point may be for its leaf cell (a centimetre) to meet the edge, as an angle. A bit too far does no harm.
const NEAR_EDGE: f64 = 4e-9;

/// A polygon on the sphere, perhaps with holes.
#[derive(Debug)]
pub struct Area {
    polygon: Polygon,
}

impl Area {
    pub(crate) fn new(polygon: Polygon) -> Area {
        Area { polygon }
    }

    /// The polygon.
    pub fn polygon(&self) -> &Polygon {
        &self.polygon
    }

    fn edges(&self) -> impl Iterator<Item = (Point, Point)> {
        self.polygon
            .loops()
            .iter()
            .flat_map(|ring| (0..ring.num_vertices()).map(|at| (ring.vertex(at), ring.vertex(at + 1))))
    }

    /// Whether the area holds a point. A point is as large as its leaf cell, so edges and vertices belong to the area.
    pub fn contains_point(&self, point: Point) -> bool {
        if Region::contains_point(&self.polygon, &point) {
            return true;
        }
        self.edges().any(|(a, b)| may_be_near(point, a, b))
            && Region::intersects_cell(&self.polygon, &Cell::from_point(point))
    }

    fn contains_line(&self, line: &Polyline) -> bool {
        let (mut line, mut area) = (line_index(line), self.index());
        S2BooleanOperation::contains(&mut area, &mut line, closed())
    }

    fn meets_line(&self, line: &Polyline) -> bool {
        let (mut line, mut area) = (line_index(line), self.index());
        S2BooleanOperation::intersects(&mut area, &mut line, closed())
    }

    fn index(&self) -> ShapeIndex {
        let mut index = ShapeIndex::new();
        index.add(Box::new(LaxPolygon::from_polygon_ref(&self.polygon)));
        index
    }

    /// The distance from a point as an angle; 0 inside.
    fn distance(&self, point: Point) -> f64 {
        if Region::contains_point(&self.polygon, &point) {
            return 0.0;
        }
        self.edges().map(|(a, b)| distance_from_segment(point, a, b).radians()).fold(f64::INFINITY, f64::min)
    }
}

/// Lines belong to the areas whose edges they follow.
fn closed() -> Options {
    Options { polygon_model: PolygonModel::Closed, ..Options::default() }
}

fn line_index(line: &Polyline) -> ShapeIndex {
    let mut index = ShapeIndex::new();
    index.add(Box::new(line.clone()));
    index
}

/// Whether a point can be within [`NEAR_EDGE`] of the great circle through a and b. Cheap, and true too often at worst.
fn may_be_near(point: Point, a: Point, b: Point) -> bool {
    let normal = a.vector().cross(b.vector());
    let off = normal.dot(point.vector());
    off * off <= NEAR_EDGE * NEAR_EDGE * normal.norm2().max(f64::MIN_POSITIVE) + 1e-31
}

/// A geometry on the sphere: one of GeoJSON's kinds, or a collection of them, as the points, lines and areas that it has.
#[derive(Debug, Default)]
pub struct Shape {
    /// Its points.
    pub points: Vec<Point>,
    /// Its lines.
    pub lines: Vec<Polyline>,
    /// Its areas.
    pub areas: Vec<Area>,
    /// The coordinates of a single point as they are written.
    pub(crate) pair: Option<PlanePoint>,
    /// Is a polygon with the strict winding order.
    pub(crate) strict: bool,
}

impl Shape {
    /// A single point.
    pub(crate) fn of_point(pair: PlanePoint, point: Point) -> Shape {
        Shape { points: vec![point], pair: Some(pair), ..Shape::default() }
    }

    /// The coordinates of a single point.
    pub fn pair(&self) -> Option<PlanePoint> {
        self.pair
    }

    /// Whether every part of `other` is within one area of this.
    pub fn contains(&self, other: &Shape) -> bool {
        let within = |holds: &dyn Fn(&Area) -> bool| self.areas.iter().any(holds);
        other.points.iter().all(|point| within(&|area| area.contains_point(*point)))
            && other.lines.iter().all(|line| within(&|area| area.contains_line(line)))
            && other.areas.iter().all(|inner| within(&|area| area.polygon.contains_polygon(&inner.polygon)))
    }

    /// Whether any part of `other` meets any part of this.
    pub fn intersects(&self, other: &Shape) -> bool {
        other.points.iter().any(|point| self.meets_point(*point))
            || other.lines.iter().any(|line| self.meets_line(line))
            || other.areas.iter().any(|area| self.meets_area(area))
    }

    fn meets_point(&self, point: Point) -> bool {
        let cell = Cell::from_point(point);
        self.points.iter().any(|own| CellId::from_point(own) == cell.id())
            || self.lines.iter().any(|own| Region::intersects_cell(own, &cell))
            || self.areas.iter().any(|own| own.contains_point(point))
    }

    fn meets_line(&self, line: &Polyline) -> bool {
        self.points.iter().any(|own| Region::intersects_cell(line, &Cell::from_point(*own)))
            || self.lines.iter().any(|own| own.intersects(line))
            || self.areas.iter().any(|own| own.meets_line(line))
    }

    fn meets_area(&self, area: &Area) -> bool {
        self.points.iter().any(|own| area.contains_point(*own))
            || self.lines.iter().any(|own| area.meets_line(own))
            || self.areas.iter().any(|own| own.polygon.intersects_polygon(&area.polygon))
    }

    /// The distance of its nearest part from a point, as an angle.
    pub fn distance(&self, from: Point) -> f64 {
        let points = self.points.iter().map(|point| from.distance(*point).radians());
        let lines = self.lines.iter().map(|line| from.distance(line.project(from).0).radians());
        let areas = self.areas.iter().map(|area| area.distance(from));
        points.chain(lines).chain(areas).fold(f64::INFINITY, f64::min)
    }

    /// Whether a cap holds the whole shape.
    pub(crate) fn is_within_cap(&self, cap: Cap) -> bool {
        let vertices = |area: &Area| area.edges().all(|(a, b)| edge_within(cap, a, b));
        self.points.iter().all(|point| cap_meets_cell(cap, &Cell::from_point(*point)))
            && self.lines.iter().all(|line| {
                (1..line.num_vertices()).all(|at| edge_within(cap, line.vertex(at - 1), line.vertex(at)))
            })
            && self.areas.iter().all(|area| {
                vertices(area)
                    && (cap.is_full() || !Region::contains_point(&area.polygon, &antipode(cap.center())))
            })
    }
}

fn antipode(point: Point) -> Point {
    Point(-point.vector())
}

/// Whether a cap holds an edge: its ends, and no point of it is too near to the cap's other side.
fn edge_within(cap: Cap, a: Point, b: Point) -> bool {
    if !cap.contains_point(a) || !cap.contains_point(b) {
        return false;
    }
    let radius = cap.angle_radius().radians();
    radius <= std::f64::consts::FRAC_PI_2
        || distance_from_segment(antipode(cap.center()), a, b)
            >= Angle::from_radians(std::f64::consts::PI - radius)
}

pub(crate) fn cap_meets_cell(cap: Cap, cell: &Cell) -> bool {
    cell.distance_to_point(cap.center()) <= cap.chord_radius()
}
