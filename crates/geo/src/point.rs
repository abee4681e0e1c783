//! Points: pairs in the plane, and their places on the sphere.

use s2rst::s2::{LatLng, Point};
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Error, Result};

/// A pair of finite numbers: x and y, or longitude and latitude.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlanePoint {
    /// x, or the longitude in degrees.
    pub x: f64,
    /// y, or the latitude in degrees.
    pub y: f64,
}

impl PlanePoint {
    /// The distance in the plane.
    pub fn distance(self, other: PlanePoint) -> f64 {
        (self.x - other.x).hypot(self.y - other.y)
    }

    /// The place on the sphere; `None` if the pair is no longitude and latitude.
    pub fn to_sphere(self) -> Option<Point> {
        is_lng_lat(self).then(|| LatLng::from_degrees(self.y, self.x).normalized().to_point())
    }
}

/// Whether a pair is a longitude and a latitude in degrees.
pub fn is_lng_lat(point: PlanePoint) -> bool {
    point.x.abs() <= 180.0 && point.y.abs() <= 90.0
}

/// `BadValue`.
pub(crate) fn bad<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::bad_value(message))
}

/// The document or array that a value is.
pub(crate) fn fields(value: Value<'_>) -> Option<RawDoc<'_>> {
    value.as_doc().or_else(|| value.as_array())
}

/// Whether a value is a pair and no GeoJSON: an array, or a document whose first field is a number.
pub(crate) fn is_legacy(value: Value<'_>) -> bool {
    match value {
        Value::Array(_) => true,
        Value::Document(doc) => doc.values().next().is_some_and(|first| first.is_number()),
        _ => false,
    }
}

/// A pair from an array or a document: its first two fields, whatever their names; `more` allows further ones.
pub(crate) fn plane_point(value: Value<'_>, more: bool) -> Result<PlanePoint> {
    let Some(pair) = fields(value) else {
        return bad(format!("Point must be an array or object, instead got type {}", value.type_name()));
    };
    let mut numbers = pair.values();
    let mut number = || match numbers.next() {
        Some(found) => match found.as_f64() {
            Some(number) => Ok(number),
            None => bad(format!(
                "Point must only contain numeric elements, instead got type {}",
                found.type_name()
            )),
        },
        None => bad("Point must only contain numeric elements, instead got type missing"),
    };
    let point = PlanePoint { x: number()?, y: number()? };
    if !more && numbers.next().is_some() {
        return bad("Point must only contain two numeric elements");
    }
    if !(point.x.is_finite() && point.y.is_finite()) {
        return bad(format!(
            "Point coordinates must be finite numbers, instead got x: {} y: {}",
            point.x, point.y
        ));
    }
    Ok(point)
}

/// A position of GeoJSON: a longitude and a latitude, and whatever follows.
pub(crate) fn position(value: Value<'_>) -> Result<(PlanePoint, Point)> {
    let pair = plane_point(value, true)?;
    match pair.to_sphere() {
        Some(point) => Ok((pair, point)),
        None => bad(format!("Longitude/latitude is out of bounds, lng: {} lat: {}", pair.x, pair.y)),
    }
}
