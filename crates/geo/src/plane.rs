//! Shapes of the plane.

use sheaf_bson::{RawDoc, Value};
use sheaf_errors::Result;

use crate::point::{PlanePoint, bad, plane_point};

/// `$box`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlaneBox {
    /// The corner with the smaller coordinates.
    pub min: PlanePoint,
    /// The corner with the greater coordinates.
    pub max: PlanePoint,
}

impl PlaneBox {
    pub(crate) fn parse(corners: RawDoc<'_>) -> Result<PlaneBox> {
        let mut corners = corners.values();
        let mut corner = || plane_point(corners.next().unwrap_or(Value::Missing), false);
        let (a, b) = (corner()?, corner()?);
        Ok(PlaneBox {
            min: PlanePoint { x: a.x.min(b.x), y: a.y.min(b.y) },
            max: PlanePoint { x: a.x.max(b.x), y: a.y.max(b.y) },
        })
    }

    /// Whether the box holds a point; its edges belong to it.
    pub fn contains(&self, point: PlanePoint) -> bool {
        (self.min.x..=self.max.x).contains(&point.x) && (self.min.y..=self.max.y).contains(&point.y)
    }
}

/// `$center`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Circle {
    /// The centre.
    pub center: PlanePoint,
    /// The radius; not negative, perhaps infinite.
    pub radius: f64,
}

impl Circle {
    /// Reads `[centre, radius]`, of `$center` and of `$centerSphere`.
    pub(crate) fn parse(parts: RawDoc<'_>) -> Result<Circle> {
        let mut parts = parts.values();
        let center = plane_point(parts.next().unwrap_or(Value::Missing), false)?;
        let radius = match parts.next().unwrap_or(Value::Missing).as_f64() {
            Some(radius) if radius >= 0.0 => radius,
            _ => return bad("Radius must be a non-negative number"),
        };
        if parts.next().is_some() {
            return bad("Only 2 fields allowed for circular region");
        }
        Ok(Circle { center, radius })
    }

    /// Whether the circle holds a point; its edge belongs to it.
    pub fn contains(&self, point: PlanePoint) -> bool {
        self.center.distance(point) <= self.radius
    }
}

/// `$polygon`: a ring without holes, which may cross itself.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanePolygon {
    points: Vec<PlanePoint>,
}

impl PlanePolygon {
    pub(crate) fn parse(points: RawDoc<'_>) -> Result<PlanePolygon> {
        let points = points.values().map(|point| plane_point(point, false)).collect::<Result<Vec<_>>>()?;
        if points.len() < 3 {
            return bad("Polygon must have at least 3 points");
        }
        Ok(PlanePolygon { points })
    }

    /// The smallest box that holds the polygon.
    pub fn bounds(&self) -> PlaneBox {
        let mut bounds = PlaneBox { min: self.points[0], max: self.points[0] };
        for point in &self.points {
            bounds.min = PlanePoint { x: bounds.min.x.min(point.x), y: bounds.min.y.min(point.y) };
            bounds.max = PlanePoint { x: bounds.max.x.max(point.x), y: bounds.max.y.max(point.y) };
        }
        bounds
    }

    /// Whether a ray from the point meets the ring an odd number of times. As in MongoDB a vertex is inside, and so is a point on an
    /// upright or level edge; on a slanting one it depends on where the ray goes.
    pub fn contains(&self, point: PlanePoint) -> bool {
        let mut inside = false;
        let mut from = self.points[self.points.len() - 1];
        for &to in &self.points {
            if is_on_level(point, from, to) {
                return true;
            }
            let (low, high) = (from.y.min(to.y), from.y.max(to.y));
            if point.y > low && point.y <= high {
                let met = (point.y - from.y) * (to.x - from.x) / (to.y - from.y) + from.x;
                inside ^= point.x <= met;
            }
            from = to;
        }
        inside
    }
}

/// Whether a point is one of two others, or on the line between them if that is upright or level.
fn is_on_level(point: PlanePoint, from: PlanePoint, to: PlanePoint) -> bool {
    let between = |n: f64, a: f64, b: f64| n >= a.min(b) && n <= a.max(b);
    point == to
        || (from.x == to.x && point.x == to.x && between(point.y, from.y, to.y))
        || (from.y == to.y && point.y == to.y && between(point.x, from.x, to.x))
}
