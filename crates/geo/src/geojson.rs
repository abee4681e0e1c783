//! GeoJSON: its kinds, and MongoDB's checks of them.

use s2rst::s2::polyline::Polyline;
use s2rst::s2::{Loop, Point, Polygon};
use sheaf_bson::{RawDoc, Value, value_text};
use sheaf_errors::Result;

use crate::crossings::{has_crossing, rings_touch};
use crate::point::{PlanePoint, bad, fields, position};
use crate::shape::{Area, Shape};

/// How a geometry's coordinates are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crs {
    /// A ring goes around what is smaller.
    Sphere,
    /// A ring goes around what is on its left, however large.
    Strict,
}

const STRICT: &str = "urn:x-mongodb:crs:strictwinding:EPSG:4326";
const PLAIN: &[&str] = &["EPSG:4326", "urn:ogc:def:crs:OGC:1.3:CRS84"];

/// Reads a geometry.
///
/// Errors: `BadValue`; what the meter says.
pub(crate) fn parse(doc: RawDoc<'_>) -> Result<Shape> {
    let kind = kind(doc);
    if kind == Some("GeometryCollection") {
        return collection(doc);
    }
    let mut shape = Shape::default();
    match kind.and_then(reader) {
        Some(read) => read(doc, &mut shape)?,
        None => return bad(format!("unknown GeoJSON type: {}", text(Value::Document(doc)))),
    }
    Ok(shape)
}

type Reader = fn(RawDoc<'_>, &mut Shape) -> Result<()>;

fn reader(kind: &str) -> Option<Reader> {
    Some(match kind {
        "Point" => point,
        "LineString" => line_string,
        "Polygon" => polygon,
        "MultiPoint" => multi_point,
        "MultiLineString" => multi_line_string,
        "MultiPolygon" => multi_polygon,
        _ => return None,
    })
}

fn kind(doc: RawDoc<'_>) -> Option<&str> {
    doc.get("type")?.as_str()
}

fn coordinates(doc: RawDoc<'_>) -> Value<'_> {
    doc.get_or_missing("coordinates")
}

fn text(value: Value<'_>) -> String {
    value_text(value)
}

fn crs(doc: RawDoc<'_>, strict_allowed: bool) -> Result<Crs> {
    let Some(crs) = doc.get("crs") else { return Ok(Crs::Sphere) };
    let Some(crs) = fields(crs) else { return bad("GeoJSON CRS must be an object") };
    if crs.get("type").and_then(|kind| kind.as_str()) != Some("name") {
        return bad("GeoJSON CRS must have field \"type\": \"name\"");
    }
    let Some(properties) = crs.get("properties").and_then(fields) else {
        return bad("CRS must have field \"properties\" which is an object");
    };
    let Some(Value::String(name)) = properties.get("name") else {
        return bad("In CRS, \"properties.name\" must be a string");
    };
    match name {
        STRICT if strict_allowed => Ok(Crs::Strict),
        STRICT => bad("Strict winding order is only supported by polygon"),
        name if PLAIN.contains(&name) => Ok(Crs::Sphere),
        name => bad(format!("Unknown CRS name: {name}")),
    }
}

/// The coordinates of a point, whatever its type.
///
/// Errors: `BadValue`.
pub(crate) fn parse_point(doc: RawDoc<'_>) -> Result<PlanePoint> {
    let mut shape = Shape::default();
    point(doc, &mut shape)?;
    match shape.pair {
        Some(pair) => Ok(pair),
        None => bad("a point has coordinates"),
    }
}

fn point(doc: RawDoc<'_>, shape: &mut Shape) -> Result<()> {
    crs(doc, false)?;
    let (pair, point) = position(coordinates(doc))?;
    shape.pair = Some(pair);
    shape.points.push(point);
    Ok(())
}

fn positions(value: Value<'_>) -> Result<Vec<Point>> {
    let Value::Array(array) = value else {
        return bad("GeoJSON coordinates must be an array of coordinates");
    };
    let mut points = Vec::new();
    for value in array.values() {
        sheaf_meter::tick(2)?;
        points.push(position(value)?.1);
    }
    Ok(points)
}

fn line(value: Value<'_>) -> Result<Polyline> {
    let mut points = positions(value)?;
    points.dedup();
    if points.len() < 2 {
        return bad(format!("GeoJSON LineString must have at least 2 vertices: {}", text(value)));
    }
    let line = Polyline::new(points);
    match line.find_validation_error() {
        None => Ok(line),
        Some(_) => bad(format!("GeoJSON LineString isn't valid: {}", text(value))),
    }
}

fn line_string(doc: RawDoc<'_>, shape: &mut Shape) -> Result<()> {
    crs(doc, false)?;
    shape.lines.push(line(coordinates(doc))?);
    Ok(())
}

/// The vertices of a ring, its last one (which repeats the first) dropped.
fn ring(value: Value<'_>) -> Result<Vec<Point>> {
    let mut points = positions(value)?;
    if points.is_empty() {
        return bad(format!("Loop has no vertices: {}", text(value)));
    }
    if points.first() != points.last() {
        return bad(format!("Loop is not closed, first vertex does not equal last vertex: {}", text(value)));
    }
    points.dedup();
    points.pop();
    if points.len() < 3 {
        return bad(format!("Loop must have at least 3 different vertices: {}", text(value)));
    }
    Ok(points)
}

fn valid_loop(points: Vec<Point>, value: Value<'_>) -> Result<Loop> {
    let ring = Loop::new(points);
    let mut sorted: Vec<[u64; 3]> =
        ring.vertices().iter().map(|v| [v.x().to_bits(), v.y().to_bits(), v.z().to_bits()]).collect();
    sorted.sort_unstable();
    let duplicate = sorted.windows(2).any(|pair| pair[0] == pair[1]);
    let alone = Polygon::from_loops(vec![ring.clone()]);
    if duplicate || ring.validate().is_err() || has_crossing(&alone)? {
        return bad(format!("Loop is not valid: {}", text(value)));
    }
    Ok(ring)
}

/// A polygon: an outer ring and holes in it.
fn rings(value: Value<'_>) -> Result<Area> {
    let Value::Array(array) = value else { return bad("Polygon coordinates must be an array") };
    let mut loops: Vec<Loop> = Vec::new();
    for value in array.values() {
        let mut ring = valid_loop(ring(value)?, value)?;
        ring.normalize();
        if loops.first().is_some_and(|outer| !outer.contains_loop(&ring)) {
            return bad(format!(
                "Secondary loops not contained by first exterior loop - secondary loops must be holes: {} first loop: {}",
                text(value),
                text(array.values().next().unwrap_or(Value::Missing))
            ));
        }
        loops.push(ring);
    }
    if loops.is_empty() {
        return bad("Polygon has no loops.");
    }
    let several = loops.len() > 1;
    let polygon = Polygon::from_loops(loops);
    if several {
        let nested = polygon.loops().iter().any(|ring| ring.depth() > 1);
        if nested {
            return bad(format!("Polygon interior loops cannot be nested: {}", text(value)));
        }
        // What rings that touch may do only S2 knows; it has no crossings to gather then.
        let is_wrong = has_crossing(&polygon)?
            || rings_touch(&polygon) && polygon.find_validation_error().is_some()
            || !polygon.is_normalized();
        if is_wrong {
            return bad(format!("Polygon isn't valid: {}", text(value)));
        }
    }
    Ok(Area::new(polygon))
}

/// One ring around what is on its left.
fn strict_ring(value: Value<'_>) -> Result<Area> {
    let Value::Array(array) = value else { return bad("Coordinates of polygon must be an array") };
    if array.count() != 1 {
        return bad(format!(
            "Only one simple loop is allowed in a big polygon, instead provided {}",
            array.count()
        ));
    }
    let value = array.values().next().unwrap_or(Value::Missing);
    Ok(Area::new(Polygon::from_loops(vec![valid_loop(ring(value)?, value)?])))
}

fn polygon(doc: RawDoc<'_>, shape: &mut Shape) -> Result<()> {
    let area = match crs(doc, true)? {
        Crs::Sphere => rings(coordinates(doc))?,
        Crs::Strict => {
            shape.strict = true;
            strict_ring(coordinates(doc))?
        }
    };
    shape.areas.push(area);
    Ok(())
}

/// The members of a multi-geometry; at least one.
fn members<'a>(doc: RawDoc<'a>, kind: &str) -> Result<RawDoc<'a>> {
    crs(doc, false)?;
    match coordinates(doc) {
        Value::Array(array) if array.is_empty() => {
            bad(format!("{kind} coordinates must have at least 1 element"))
        }
        Value::Array(array) => Ok(array),
        _ => bad(format!("{kind} coordinates must be an array")),
    }
}

fn multi_point(doc: RawDoc<'_>, shape: &mut Shape) -> Result<()> {
    members(doc, "MultiPoint")?;
    shape.points.extend(positions(coordinates(doc))?);
    Ok(())
}

fn multi_line_string(doc: RawDoc<'_>, shape: &mut Shape) -> Result<()> {
    for value in members(doc, "MultiLineString")?.values() {
        shape.lines.push(line(value)?);
    }
    Ok(())
}

fn multi_polygon(doc: RawDoc<'_>, shape: &mut Shape) -> Result<()> {
    for value in members(doc, "MultiPolygon")?.values() {
        shape.areas.push(rings(value)?);
    }
    Ok(())
}

fn collection(doc: RawDoc<'_>) -> Result<Shape> {
    let Some(Value::Array(geometries)) = doc.get("geometries") else {
        return bad("GeometryCollection geometries must be an array");
    };
    if geometries.is_empty() {
        return bad("GeometryCollection geometries must have at least 1 element");
    }
    let mut shape = Shape::default();
    for (at, value) in geometries.values().enumerate() {
        let Value::Document(doc) = value else {
            return bad(format!("Element {at} of \"geometries\" is not an object"));
        };
        match kind(doc) {
            Some("GeometryCollection") => {
                return bad(format!("GeometryCollections cannot be nested: {}", text(value)));
            }
            kind => match kind.and_then(reader) {
                Some(read) => read(doc, &mut shape)?,
                None => return bad(format!("Unknown GeoJSON type: {}", text(value))),
            },
        }
    }
    // Of a point that stands alone only.
    shape.pair = None;
    if shape.strict {
        return bad("Strict winding order is only supported by polygon");
    }
    Ok(shape)
}
