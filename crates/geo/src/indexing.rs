//! How indexes of geometries make keys, and which keys a query has to look at.

use s2rst::s2::Cap;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::cells;
use crate::grid::Grid;
use crate::near::{Metric, Near};
use crate::plane::PlaneBox;
use crate::point::PlanePoint;
use crate::predicate::{Kind, Predicate};
use crate::region::Region;
use crate::stored::Stored;

/// Keys within two ends, both of them in.
pub type KeyRange = (i64, i64);

/// How an index makes keys of geometries.
#[derive(Clone, Debug)]
pub enum Indexing {
    /// `2dsphere`: the cells of S2 that cover the geometry.
    Sphere {
        /// The level of the largest cells.
        coarsest: u8,
        /// The level of the smallest cells; points are smaller.
        finest: u8,
    },
    /// `2d`: the place of each point on a curve through a grid.
    Grid(Grid),
}

const SPHERE: &str = "2dsphere";
const PLANE: &str = "2d";

/// Whether this is the name of a kind of geometric index.
pub fn is_geo_kind(kind: &str) -> bool {
    kind == SPHERE || kind == PLANE
}

impl Indexing {
    /// How the index of a specification makes keys; `None` if it is of another kind.
    ///
    /// Errors: `TypeMismatch`, `InvalidOptions`, `CannotCreateIndex`, 16747 to 16749, 16800, 16801.
    pub fn of_spec(spec: RawDoc<'_>) -> Result<Option<Indexing>> {
        let Some(Value::Document(pattern)) = spec.get("key") else { return Ok(None) };
        let kinds = || pattern.iter().map(|field| field.value().as_str());
        if kinds().any(|kind| kind == Some(SPHERE)) {
            return sphere(spec).map(Some);
        }
        match kinds().position(|kind| kind == Some(PLANE)) {
            None => return Ok(None),
            Some(_) if kinds().filter(|kind| *kind == Some(PLANE)).count() > 1 => {
                bail!(16800, "can't have 2 geo fields")
            }
            Some(0) => {}
            Some(_) => bail!(16801, "2d has to be first in index"),
        }
        let bits = number(spec, "bits")?.unwrap_or(26.0).trunc();
        if !(1.0..=32.0).contains(&bits) {
            bail!(Code(72), "bits for hash must be > 0 and <= 32, but {bits} bits were specified");
        }
        let (min, max) = (number(spec, "min")?.unwrap_or(-180.0), number(spec, "max")?.unwrap_or(180.0));
        if !(min < max && (max - min).is_finite()) {
            bail!(
                Code(72),
                "region for hash must be valid and have positive area, but [{min}, {max}] was specified"
            );
        }
        Ok(Some(Indexing::Grid(Grid::new(bits as u32, min, max))))
    }

    /// Adds the keys of a value: a geometry, or for the grid an array or document of points.
    ///
    /// Errors: 16755, 16756, 16804, 13027 and others of geometries that have no keys; what the meter says.
    pub fn put_keys(&self, value: Value<'_>, doc: RawDoc<'_>, out: &mut Vec<i64>) -> Result<()> {
        let Indexing::Sphere { coarsest, finest } = self else { return self.put_points(value, out) };
        let shown = || sheaf_bson::document_text(doc);
        let stored = match Stored::parse(value) {
            Ok(stored) => stored,
            Err(error) if error.code() == Code::BAD_VALUE => {
                bail!(16755, "Can't extract geo keys: {}  {}", shown(), error.message())
            }
            Err(error) => return Err(error),
        };
        let before = out.len();
        match stored.into_shape() {
            Some(shape) => cells::put_covering(&shape, *coarsest, *finest, out),
            None => bail!(
                16755,
                "Can't extract geo keys: {}  longitude/latitude is out of bounds, or the winding order is strict",
                shown()
            ),
        }
        if out.len() == before {
            bail!(16756, "Unable to generate keys for (likely malformed) geometry: {}", shown());
        }
        Ok(())
    }

    fn put_points(&self, value: Value<'_>, out: &mut Vec<i64>) -> Result<()> {
        let Indexing::Grid(grid) = self else { return Ok(()) };
        let (Value::Document(place) | Value::Array(place)) = value else { return Ok(()) };
        let Some(first) = place.values().next() else { return Ok(()) };
        if first.is_number() {
            out.push(grid.key_of(place)?);
            return Ok(());
        }
        for value in place.values() {
            sheaf_meter::tick(2)?;
            match value {
                Value::Document(place) | Value::Array(place) if place.is_empty() => {}
                Value::Document(place) | Value::Array(place) => out.push(grid.key_of(place)?),
                _ => bail!(16804, "location object expected, location array not in correct format"),
            }
        }
        Ok(())
    }

    /// Which keys geometries have that may pass; `None` if the index cannot tell.
    pub fn ranges(&self, predicate: &Predicate) -> Option<Vec<KeyRange>> {
        let region = predicate.region();
        match (self, region) {
            (Indexing::Sphere { .. }, Region::Shape(shape)) => Some(cells::ranges_of_shape(shape)),
            (Indexing::Sphere { .. }, Region::Cap(cap)) => Some(cells::ranges_of(cap)),
            (Indexing::Grid(grid), region) if predicate.kind() == Kind::Within => {
                Some(boxes(region)?.iter().flat_map(|part| grid.ranges(*part)).collect())
            }
            _ => None,
        }
    }

    /// Whether the index can give geometries in the order of their distances.
    pub fn serves_near(&self, near: &Near) -> bool {
        match self {
            Indexing::Sphere { .. } => near.metric != Metric::Plane,
            Indexing::Grid(_) => near.metric != Metric::Metres,
        }
    }

    /// Checks that the centre is where the index can look.
    ///
    /// Errors: 16433.
    pub fn check_near(&self, near: &Near) -> Result<()> {
        match self {
            Indexing::Grid(grid) => grid.check(near.center),
            Indexing::Sphere { .. } => Ok(()),
        }
    }

    /// Which keys geometries have that may be in the ring of these distances. A grid gives all within the outer one.
    pub fn ring(&self, near: &Near, inner: f64, outer: f64) -> Vec<KeyRange> {
        match (self, near.point()) {
            (Indexing::Sphere { .. }, Some(center)) => {
                cells::ranges_of(&cells::Ring::new(center, near.angle_of(inner), near.angle_of(outer)))
            }
            (Indexing::Grid(grid), Some(center)) => {
                let parts = boxes_of_cap(cells::cap(center, near.angle_of(outer)));
                parts.iter().flat_map(|part| grid.ranges(*part)).collect()
            }
            (Indexing::Grid(grid), None) => grid.ranges(around(near.center, outer)),
            (Indexing::Sphere { .. }, None) => Vec::new(),
        }
    }

    /// How far away the geometry of a key may be, going by how much of the key is the centre's: where to begin with looking.
    pub fn guess(&self, near: &Near, key: i64) -> Option<f64> {
        match (self, near.point()) {
            (Indexing::Sphere { .. }, Some(center)) => {
                let angle = cells::size_of_common(center, key)?;
                Some(if near.metric == Metric::Metres { angle * crate::EARTH_RADIUS } else { angle })
            }
            (Indexing::Grid(grid), center) => {
                let side = grid.size_of_common(near.center, key);
                Some(if center.is_some() { side.to_radians() } else { side })
            }
            (Indexing::Sphere { .. }, None) => None,
        }
    }

    /// The key that a point at the centre has.
    pub fn key_of_center(&self, near: &Near) -> Option<i64> {
        match (self, near.point()) {
            (Indexing::Sphere { .. }, center) => center.map(cells::key_of_point),
            (Indexing::Grid(grid), _) => Some(grid.key_of_point(near.center)),
        }
    }

    /// The distance beyond which there is nothing.
    pub fn reach(&self, near: &Near) -> f64 {
        match (self, near.metric) {
            (_, Metric::Metres) => std::f64::consts::PI * crate::EARTH_RADIUS + 1.0,
            (_, Metric::Radians) => std::f64::consts::PI + 1e-6,
            (Indexing::Grid(grid), Metric::Plane) => grid.reach(near.center),
            (Indexing::Sphere { .. }, Metric::Plane) => 0.0,
        }
    }
}

fn number(spec: RawDoc<'_>, name: &str) -> Result<Option<f64>> {
    let Some(value) = spec.get(name) else { return Ok(None) };
    match value.as_f64() {
        Some(number) => Ok(Some(number)),
        None => {
            bail!(Code::TYPE_MISMATCH, "The field '{name}' must be a number, but got {}", value.type_name())
        }
    }
}

/// Versions of keys that MongoDB knows. They differ in what they index, not in what queries find.
const VERSIONS: std::ops::RangeInclusive<f64> = 1.0..=4.0;
/// What 2dsphere indexes have unless they are told.
const FINEST: f64 = 23.0;

fn sphere(spec: RawDoc<'_>) -> Result<Indexing> {
    let version = number(spec, "2dsphereIndexVersion")?.unwrap_or(3.0).trunc();
    if !VERSIONS.contains(&version) {
        bail!(
            Code::CANNOT_CREATE_INDEX,
            "unsupported geo index version {{ 2dsphereIndexVersion: {version} }}, only support versions: [1,2,3,4]"
        );
    }
    let coarsest = number(spec, "coarsestIndexedLevel")?.unwrap_or(0.0).trunc();
    let finest = number(spec, "finestIndexedLevel")?.unwrap_or(FINEST).trunc();
    if coarsest.is_nan() || coarsest < 0.0 {
        bail!(16747, "coarsestIndexedLevel must be >= 0");
    }
    if finest.is_nan() || finest > 30.0 {
        bail!(16748, "finestIndexedLevel must be <= 30");
    }
    if coarsest > finest {
        bail!(16749, "finestIndexedLevel must be >= coarsestIndexedLevel");
    }
    Ok(Indexing::Sphere { coarsest: coarsest as u8, finest: finest as u8 })
}

/// Boxes that hold a region of the plane; `None` for what lies on the sphere only.
fn boxes(region: &Region) -> Option<Vec<PlaneBox>> {
    Some(match region {
        Region::Box(region) => vec![*region],
        Region::Circle(circle) => vec![around(circle.center, circle.radius)],
        Region::Polygon(polygon) => vec![polygon.bounds()],
        Region::Cap(cap) => boxes_of_cap(*cap),
        Region::Pair(_) | Region::Shape(_) => return None,
    })
}

fn around(center: PlanePoint, radius: f64) -> PlaneBox {
    PlaneBox {
        min: PlanePoint { x: center.x - radius, y: center.y - radius },
        max: PlanePoint { x: center.x + radius, y: center.y + radius },
    }
}

/// What is added to the sides of a cap's boxes, in degrees.
const MARGIN: f64 = 1e-9;

/// Boxes of longitudes and latitudes that hold a cap: two if it goes over the line of dates.
fn boxes_of_cap(cap: Cap) -> Vec<PlaneBox> {
    let rect = cap.rect_bound();
    let part = |low: f64, high: f64| PlaneBox {
        min: PlanePoint { x: low.to_degrees() - MARGIN, y: rect.lat.lo.to_degrees() - MARGIN },
        max: PlanePoint { x: high.to_degrees() + MARGIN, y: rect.lat.hi.to_degrees() + MARGIN },
    };
    let (low, high) = (rect.lng.lo, rect.lng.hi);
    let pi = std::f64::consts::PI;
    if low <= high {
        // At the line itself a longitude may be written both ways.
        let mut all = vec![part(low, high)];
        if low <= -pi {
            all.push(part(pi, pi));
        }
        if high >= pi {
            all.push(part(-pi, -pi));
        }
        all
    } else {
        vec![part(low, pi), part(-pi, high)]
    }
}
