//! `$near`, `$nearSphere` and `$geoNear`: a centre, a metric, distances.

use s2rst::s2::Point;
use sheaf_bson::{DocBuf, Element, RawDoc, Value};
use sheaf_errors::{Error, Result, bail};

use crate::geojson;
use crate::point::{PlanePoint, bad, fields, is_legacy, plane_point};
use crate::stored::Stored;

/// MongoDB's radius of the earth, in metres.
pub const EARTH_RADIUS: f64 = 6_378_100.0;

/// What a distance is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// In the plane, in the units of the coordinates.
    Plane,
    /// On the sphere, in radians: a legacy pair with `$nearSphere`.
    Radians,
    /// On the sphere, in metres: a GeoJSON point.
    Metres,
}

/// A condition that orders by distance.
#[derive(Clone, Debug)]
pub struct Near {
    /// The centre as it was written.
    pub center: PlanePoint,
    /// How distances are measured.
    pub metric: Metric,
    /// The least distance; 0 unless asked for.
    pub min: f64,
    /// The greatest distance; infinite unless asked for.
    pub max: f64,
    point: Option<Point>,
    source: DocBuf,
}

/// Whether an operator orders by distance.
fn is_near(name: &str) -> bool {
    matches!(name, "$near" | "$nearSphere" | "$geoNear")
}

impl Near {
    /// Reads all operators on a path, of which the first is `$near`, `$nearSphere` or `$geoNear`.
    ///
    /// Errors: `BadValue`, 16893 to 16896, 18522, 34413; what the meter says.
    pub fn parse(operators: RawDoc<'_>) -> Result<Near> {
        let mut near = match legacy(operators)? {
            Some(near) => near,
            None => with_geometry(operators)?,
        };
        near.source = operators.into();
        Ok(near)
    }

    /// A centre without limits: `near` of `$geoNear`, with `spherical`.
    ///
    /// Errors: `BadValue`; what the meter says.
    pub fn around(near: Value<'_>, spherical: bool) -> Result<Near> {
        let (center, geojson) = query_point(near)?;
        Near::at(center, geojson, spherical)
    }

    fn at(center: PlanePoint, geojson: bool, spherical: bool) -> Result<Near> {
        let metric = match (geojson, spherical) {
            (true, _) => Metric::Metres,
            (false, true) => Metric::Radians,
            (false, false) => Metric::Plane,
        };
        let point = match metric {
            Metric::Plane => None,
            _ => match center.to_sphere() {
                Some(point) => Some(point),
                None => return bad("Legacy point is out of bounds for spherical query"),
            },
        };
        Ok(Near { center, metric, min: 0.0, max: f64::INFINITY, point, source: DocBuf::new() })
    }

    /// The operators as they were written.
    pub fn source(&self) -> &DocBuf {
        &self.source
    }

    /// The centre on the sphere, if distances are measured there.
    pub fn point(&self) -> Option<Point> {
        self.point
    }

    /// A distance as an angle; of a metric on the sphere.
    pub fn angle_of(&self, distance: f64) -> f64 {
        if self.metric == Metric::Metres { distance / EARTH_RADIUS } else { distance }
    }

    /// Whether a distance is within the limits.
    pub fn allows(&self, distance: f64) -> bool {
        self.min <= distance && distance <= self.max
    }

    /// The distance of a geometry; `None` for one that has no place where distances are measured.
    pub fn distance(&self, stored: Stored) -> Option<f64> {
        let Some(from) = self.point else { return Some(self.center.distance(stored.pair()?)) };
        let angle = stored.into_shape()?.distance(from);
        Some(if self.metric == Metric::Metres { angle * EARTH_RADIUS } else { angle })
    }

    /// The distance of the nearest geometry that a value is or, as an array, has; with that geometry.
    ///
    /// Errors: what the meter says.
    pub fn nearest<'a>(&self, value: Value<'a>) -> Result<Option<(f64, Value<'a>)>> {
        if !matches!(value, Value::Document(_) | Value::Array(_)) {
            return Ok(None);
        }
        if let Some(stored) = Stored::find(value)? {
            return Ok(self.distance(stored).map(|distance| (distance, value)));
        }
        let Value::Array(array) = value else { return Ok(None) };
        let mut best: Option<(f64, Value<'a>)> = None;
        for item in array.values() {
            sheaf_meter::tick(4)?;
            if let Some(stored) = Stored::find(item)?
                && let Some(distance) = self.distance(stored)
                && best.is_none_or(|(least, _)| distance < least)
            {
                best = Some((distance, item));
            }
        }
        Ok(best)
    }
}

/// A point of a query, and whether it is GeoJSON.
fn query_point(value: Value<'_>) -> Result<(PlanePoint, bool)> {
    let Some(doc) = fields(value) else { return bad("Point must be an array or object") };
    if is_legacy(value) {
        return Ok((plane_point(value, false)?, false));
    }
    // A point may do without its type.
    if doc.get("type").is_some_and(|kind| kind.as_str() != Some("Point")) {
        return bad("invalid geo near query point: it must be a GeoJSON Point");
    }
    Ok((geojson::parse_point(doc)?, true))
}

/// `[x, y, greatest distance]`.
fn point_with_distance(value: Value<'_>) -> Option<(PlanePoint, f64)> {
    let numbers = fields(value)?.values().take(4).map(|v| v.as_f64()).collect::<Option<Vec<_>>>()?;
    let [x, y, max] = numbers[..] else { return None };
    (x.is_finite() && y.is_finite()).then_some((PlanePoint { x, y }, max))
}

/// `{$near: point, $minDistance, $maxDistance}`; `None` for what is written otherwise.
fn legacy(operators: RawDoc<'_>) -> Result<Option<Near>> {
    let mut found = None;
    let (mut min, mut max) = (0.0, f64::INFINITY);
    for element in operators.iter() {
        let value = element.value();
        match element.key() {
            name if is_near(name) => {
                let spherical = name == "$nearSphere";
                if let Ok((center, geojson)) = query_point(value) {
                    found = Some((center, geojson, spherical));
                } else if let Some((center, distance)) = point_with_distance(value) {
                    max = distance;
                    found = Some((center, false, spherical));
                }
                if found.is_some() && (max < 0.0 || f64::is_nan(max)) {
                    bail!(18522, "max distance must be non-negative");
                }
            }
            "$minDistance" => min = limit(element, 16893, 16894)?,
            "$maxDistance" => max = limit(element, 16895, 16896)?,
            "$uniqueDocs" => {}
            other => bail!(34413, "invalid argument in geo near query: {other}"),
        }
    }
    let Some((center, geojson, spherical)) = found else { return Ok(None) };
    Ok(Some(Near { min, max, ..Near::at(center, geojson, spherical)? }))
}

fn limit(element: Element<'_>, not_number: i32, negative: i32) -> Result<f64> {
    let name = element.key();
    match element.value().as_f64() {
        None => bail!(sheaf_errors::Code(not_number), "{name} must be a number"),
        Some(limit) if limit >= 0.0 => Ok(limit),
        Some(_) => bail!(sheaf_errors::Code(negative), "{name} must be non-negative"),
    }
}

/// `{$near: {$geometry: point, $minDistance, $maxDistance}}`.
fn with_geometry(operators: RawDoc<'_>) -> Result<Near> {
    let mut elements = operators.iter();
    let Some(element) = elements.next() else { return bad("empty geo near query object") };
    if let Some(extra) = elements.next() {
        return bad(format!(
            "geo near accepts just one argument when querying for a GeoJSON point. Extra field found: {}",
            sheaf_bson::element_text(extra.key(), extra.value())
        ));
    }
    let Some(argument) = fields(element.value()) else {
        return bad("geo near query argument is not an object");
    };
    if !is_near(element.key()) {
        return bad(format!("invalid geo near query operator: {}", element.key()));
    }
    let mut near = None;
    let (mut min, mut max) = (0.0, f64::INFINITY);
    for part in argument.iter() {
        match part.key() {
            "$geometry" => {
                let point = query_point(part.value())
                    .map_err(|error| error.context("invalid point in geo near query $geometry argument"))?;
                if !point.1 {
                    return bad(format!(
                        "$near requires geojson point, given {}",
                        sheaf_bson::value_text(part.value())
                    ));
                }
                near = Some(Near::at(point.0, true, true)?);
            }
            "$minDistance" => min = finite_limit(part)?,
            "$maxDistance" => max = finite_limit(part)?,
            other => return bad(format!("invalid argument in geo near query: {other}")),
        }
    }
    match near {
        Some(near) => Ok(Near { min, max, ..near }),
        None => Err(Error::bad_value("$geometry is required for geo near query")),
    }
}

fn finite_limit(element: Element<'_>) -> Result<f64> {
    let name = element.key();
    match element.value().as_f64() {
        None => bad(format!("{name} must be a number")),
        Some(limit) if limit >= 0.0 && limit.is_finite() => Ok(limit),
        Some(_) => bad(format!("{name} must be non-negative")),
    }
}
