//! What `$geoWithin` and `$geoIntersects` ask about.

use s2rst::s1::Angle;
use s2rst::s2::Cap;
use sheaf_bson::{Element, Value};
use sheaf_errors::Result;

use crate::geojson;
use crate::plane::{Circle, PlaneBox, PlanePolygon};
use crate::point::{PlanePoint, bad, fields, is_legacy, plane_point};
use crate::shape::Shape;
use crate::stored::Stored;

/// The operand of a predicate.
#[derive(Debug)]
pub enum Region {
    /// `$geometry` with a legacy pair.
    Pair(PlanePoint),
    /// `$box`.
    Box(PlaneBox),
    /// `$center`.
    Circle(Circle),
    /// `$polygon`.
    Polygon(PlanePolygon),
    /// `$centerSphere`.
    Cap(Cap),
    /// `$geometry` with GeoJSON.
    Shape(Shape),
}

impl Region {
    /// Reads `$geometry: ...`, `$box: ...` and so on.
    ///
    /// Errors: `BadValue`; what the meter says.
    pub fn parse(element: Element<'_>) -> Result<Region> {
        let value = element.value();
        let known = matches!(element.key(), "$box" | "$center" | "$polygon" | "$centerSphere" | "$geometry");
        let Some(parts) = fields(value).filter(|_| known) else {
            return bad(format!("unknown geo specifier: {}", sheaf_bson::element_text(element.key(), value)));
        };
        Ok(match element.key() {
            "$box" => Region::Box(PlaneBox::parse(parts)?),
            "$center" => Region::Circle(Circle::parse(parts)?),
            "$polygon" => Region::Polygon(PlanePolygon::parse(parts)?),
            "$centerSphere" => Region::Cap(parse_cap(Circle::parse(parts)?)?),
            _ if is_legacy(value) => Region::Pair(plane_point(value, false)?),
            _ => Region::Shape(geojson::parse(parts)?),
        })
    }

    /// Whether anything could be within it.
    pub(crate) fn has_inside(&self) -> bool {
        match self {
            Region::Pair(_) => false,
            Region::Shape(shape) => !shape.areas.is_empty(),
            _ => true,
        }
    }

    /// The same on the sphere; `None` if it has no place there.
    pub(crate) fn onto_sphere(self) -> Option<Region> {
        match self {
            Region::Pair(pair) => Some(Region::Shape(Shape::of_point(pair, pair.to_sphere()?))),
            Region::Cap(_) | Region::Shape(_) => Some(self),
            Region::Box(_) | Region::Circle(_) | Region::Polygon(_) => None,
        }
    }

    /// Whether it holds a geometry.
    pub fn contains(&self, stored: Stored) -> bool {
        match self {
            Region::Pair(_) => false,
            Region::Box(region) => stored.pair().is_some_and(|pair| region.contains(pair)),
            Region::Circle(region) => stored.pair().is_some_and(|pair| region.contains(pair)),
            Region::Polygon(region) => stored.pair().is_some_and(|pair| region.contains(pair)),
            Region::Cap(cap) => stored.into_shape().is_some_and(|shape| shape.is_within_cap(*cap)),
            Region::Shape(region) => stored.into_shape().is_some_and(|shape| region.contains(&shape)),
        }
    }

    /// Whether it meets a geometry.
    pub fn intersects(&self, stored: Stored) -> bool {
        match self {
            Region::Shape(region) => stored.into_shape().is_some_and(|shape| region.intersects(&shape)),
            // Of a cap MongoDB knows only what is within it.
            _ => false,
        }
    }
}

fn parse_cap(circle: Circle) -> Result<Cap> {
    let Some(center) = circle.center.to_sphere() else { return bad("Spherical CENTER out of bounds") };
    Ok(Cap::from_center_angle(center, Angle::from_radians(circle.radius.min(std::f64::consts::PI))))
}

/// Whether a value may be the operand of an operator that takes regions.
pub(crate) fn operand(value: Value<'_>) -> Option<sheaf_bson::RawDoc<'_>> {
    value.as_doc()
}
