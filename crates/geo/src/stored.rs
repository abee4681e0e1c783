//! Geometries in documents.

use sheaf_bson::Value;
use sheaf_errors::Result;

use crate::geojson;
use crate::point::{PlanePoint, bad, fields, is_legacy, plane_point};
use crate::shape::Shape;

/// A geometry in a document.
#[derive(Debug)]
pub enum Stored {
    /// A legacy pair: an array, or a document that begins with a number.
    Pair(PlanePoint),
    /// GeoJSON.
    Shape(Shape),
}

impl Stored {
    /// Reads a geometry.
    ///
    /// Errors: `BadValue` if the value is none; what the meter says.
    pub fn parse(value: Value<'_>) -> Result<Stored> {
        let Some(doc) = fields(value) else {
            return bad(format!("geo element must be an array or object: {}", sheaf_bson::value_text(value)));
        };
        if is_legacy(value) {
            return plane_point(value, true).map(Stored::Pair);
        }
        geojson::parse(doc).map(Stored::Shape)
    }

    /// [`Stored::parse`]; `None` for what is no geometry.
    ///
    /// Errors: what the meter says.
    pub fn find(value: Value<'_>) -> Result<Option<Stored>> {
        match Stored::parse(value) {
            Ok(stored) => Ok(Some(stored)),
            Err(error) if error.code() == sheaf_errors::Code::BAD_VALUE => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Its place in the plane; only points have one.
    pub fn pair(&self) -> Option<PlanePoint> {
        match self {
            Stored::Pair(pair) => Some(*pair),
            Stored::Shape(shape) => shape.pair(),
        }
    }

    /// Its place on the sphere. `None` for a pair that is no longitude and latitude, and for a polygon with the strict winding order,
    /// which no query matches.
    pub fn into_shape(self) -> Option<Shape> {
        match self {
            Stored::Pair(pair) => pair.to_sphere().map(|point| Shape::of_point(pair, point)),
            Stored::Shape(shape) if shape.strict => None,
            Stored::Shape(shape) => Some(shape),
        }
    }
}
