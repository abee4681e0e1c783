//! Shapes and what lies in them.

use proptest::prelude::*;
use sheaf_bson::{DocBuf, doc};

use super::*;

fn predicate(kind: Kind, operand: DocBuf) -> Predicate {
    let filter = doc! { "$geo": &operand };
    Predicate::parse(kind, filter.as_raw().iter().next().unwrap()).unwrap()
}

fn passes(predicate: &Predicate, geometry: DocBuf) -> bool {
    let doc = doc! { "g": &geometry };
    predicate.matches(doc.as_raw().get("g").unwrap()).unwrap()
}

fn point(x: f64, y: f64) -> DocBuf {
    doc! { "type": "Point", "coordinates": [x, y] }
}

#[test]
fn edges_belong_to_polygons_of_the_sphere() {
    let square = doc! { "$geometry": { "type": "Polygon", "coordinates": [[[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]] } };
    let within = predicate(Kind::Within, square);
    assert!(passes(&within, point(5.0, 5.0)));
    assert!(passes(&within, point(0.0, 0.0)));
    assert!(passes(&within, point(10.0, 5.0)));
    assert!(!passes(&within, point(-0.001, 5.0)));
}

#[test]
fn a_strict_ring_may_go_around_most_of_the_earth() {
    let crs = doc! { "type": "name", "properties": { "name": "urn:x-mongodb:crs:strictwinding:EPSG:4326" } };
    let ring = doc! { "$geometry": {
        "type": "Polygon", "crs": &crs, "coordinates": [[[-10, -10], [-10, 10], [10, 10], [10, -10], [-10, -10]]],
    } };
    let within = predicate(Kind::Within, ring);
    assert!(!passes(&within, point(0.0, 0.0)));
    assert!(passes(&within, point(120.0, 50.0)));
}

#[test]
fn the_distance_of_a_degree() {
    let near = Near::around(doc! { "p": &point(0.0, 0.0) }.as_raw().get("p").unwrap(), true).unwrap();
    let doc = doc! { "p": &point(1.0, 0.0) };
    let (distance, _) = near.nearest(doc.as_raw().get("p").unwrap()).unwrap().unwrap();
    assert!((distance - EARTH_RADIUS.to_radians()).abs() < 1e-6);
}

proptest! {
    /// A cap and the distance from its centre say the same.
    #[test]
    fn caps_hold_what_is_near(x in -180.0..180.0f64, y in -90.0..90.0f64, px in -180.0..180.0f64, py in -90.0..90.0f64,
            radius in 0.0..3.2f64) {
        let center = PlanePoint { x, y };
        let near = Near::around(doc! { "p": [x, y] }.as_raw().get("p").unwrap(), true).unwrap();
        let doc = doc! { "p": [px, py] };
        let distance = near.nearest(doc.as_raw().get("p").unwrap()).unwrap().unwrap().0;
        prop_assume!((distance - radius).abs() > 1e-7);
        let within = predicate(Kind::Within, doc! { "$centerSphere": [[center.x, center.y], radius] });
        prop_assert_eq!(passes(&within, point(px, py)), distance < radius);
    }

    /// Small rings hold the points of their boxes, nearly: geodesics bulge.
    #[test]
    fn small_squares(x in -170.0..170.0f64, y in -80.0..80.0f64, dx in -1.0..1.0f64, dy in -1.0..1.0f64) {
        let (w, h) = (0.5, 0.5);
        prop_assume!((dx.abs() - w).abs() > 0.02 && (dy.abs() - h).abs() > 0.02);
        let ring = [[x - w, y - h], [x + w, y - h], [x + w, y + h], [x - w, y + h], [x - w, y - h]];
        let ring: Vec<_> = ring.iter().map(|p| sheaf_bson::ArrayBuf::build(|a| { a.push(p[0]); a.push(p[1]); })).collect();
        let coordinates = sheaf_bson::ArrayBuf::build(|a| { a.push(&sheaf_bson::ArrayBuf::build(|b| for p in &ring { b.push(p); })); });
        let within = predicate(Kind::Within, doc! { "$geometry": { "type": "Polygon", "coordinates": &coordinates } });
        prop_assert_eq!(passes(&within, point(x + dx, y + dy)), dx.abs() < w && dy.abs() < h);
    }

    /// What passes has a key among those that the index looks at.
    #[test]
    fn keys_of_matches_are_looked_at((stored, (kind, operand)) in place().prop_flat_map(|at| (geometry(at), operand(at)))) {
        let predicate = predicate(kind, operand);
        let doc = doc! { "g": &stored };
        let value = doc.as_raw().get("g").unwrap();
        if !predicate.matches(value).unwrap() {
            return Ok(());
        }
        for indexing in indexings() {
            let mut keys = Vec::new();
            if indexing.put_keys(value, doc.as_raw(), &mut keys).is_err() {
                continue;
            }
            if let Some(ranges) = indexing.ranges(&predicate) {
                prop_assert!(meet(&keys, &ranges), "{indexing:?} {keys:?} {ranges:?}");
            }
        }
    }

    /// So has what is in a ring.
    #[test]
    fn keys_of_what_is_near_are_looked_at(stored in place().prop_flat_map(geometry), x in -180.0..180.0f64, y in -90.0..90.0f64, metric in 0..3, part in 0.0..1.0f64) {
        let center = match metric {
            0 => doc! { "p": &point(x, y) },
            _ => doc! { "p": [x, y] },
        };
        let near = Near::around(center.as_raw().get("p").unwrap(), metric == 1).unwrap();
        let doc = doc! { "g": &stored };
        let value = doc.as_raw().get("g").unwrap();
        let Some((distance, _)) = near.nearest(value).unwrap() else { return Ok(()) };
        for indexing in indexings().into_iter().filter(|indexing| indexing.serves_near(&near)) {
            let mut keys = Vec::new();
            if indexing.put_keys(value, doc.as_raw(), &mut keys).is_err() {
                continue;
            }
            prop_assert!(distance <= indexing.reach(&near));
            for (inner, outer) in [(distance * part, distance), (distance, distance * (1.0 + part))] {
                let ranges = indexing.ring(&near, inner, outer);
                prop_assert!(meet(&keys, &ranges), "{indexing:?} {keys:?} {ranges:?}");
            }
        }
    }
}

proptest! {
    /// Whatever is written as a geometry is one or is none: corners of the map, edges of no length, rings that cross themselves.
    #[test]
    fn odd_shapes(stored in odd_geometry(), asked in odd_geometry(), kind in 0..2) {
        let doc = doc! { "g": &stored };
        let value = doc.as_raw().get("g").unwrap();
        for indexing in indexings() {
            let _ = indexing.put_keys(value, doc.as_raw(), &mut Vec::new());
        }
        let filter = doc! { "$geo": { "$geometry": &asked } };
        let kind = if kind == 0 { Kind::Within } else { Kind::Intersects };
        if let Ok(predicate) = Predicate::parse(kind, filter.as_raw().iter().next().unwrap()) {
            prop_assert!(predicate.matches(value).is_ok());
            indexings().iter().for_each(|indexing| _ = indexing.ranges(&predicate));
        }
    }
}

const ODD: &[f64] = &[
    -180.0,
    -179.0,
    -90.0,
    -45.0,
    -1.0,
    -1e-13,
    0.0,
    1e-13,
    1.0,
    1.0000001,
    45.0,
    89.999999999,
    90.0,
    180.0,
    181.0,
];

fn odd_geometry() -> impl Strategy<Value = DocBuf> {
    let points = proptest::collection::vec((0..ODD.len(), 0..ODD.len()), 1..7);
    (0..6usize, points, any::<bool>(), any::<bool>()).prop_map(|(kind, points, closed, strict)| {
        let mut places: Vec<_> = points.iter().map(|(x, y)| pair(ODD[*x], ODD[*y])).collect();
        if closed {
            places.push(places[0].clone());
        }
        let line = list(&places);
        let coordinates = match kind {
            0 => places[0].clone(),
            1 | 2 => line,
            3 | 4 => list(&[line]),
            _ => list(&[list(&[line])]),
        };
        let name = ["Point", "LineString", "MultiPoint", "Polygon", "MultiLineString", "MultiPolygon"][kind];
        let plain = doc! { "type": name, "coordinates": &coordinates };
        let crs =
            doc! { "type": "name", "properties": { "name": "urn:x-mongodb:crs:strictwinding:EPSG:4326" } };
        if strict { plain.with("crs", &crs) } else { plain }
    })
}

fn indexings() -> Vec<Indexing> {
    let specs = [
        doc! { "key": { "g": "2dsphere" } },
        doc! { "key": { "g": "2dsphere" }, "finestIndexedLevel": 12 },
        doc! { "key": { "g": "2d" } },
        doc! { "key": { "g": "2d" }, "bits": 5, "min": -200, "max": 200 },
    ];
    specs.iter().map(|spec| Indexing::of_spec(spec.as_raw()).unwrap().unwrap()).collect()
}

fn meet(keys: &[i64], ranges: &[KeyRange]) -> bool {
    keys.iter().any(|key| ranges.iter().any(|(low, high)| low <= key && key <= high))
}

fn pair(x: f64, y: f64) -> sheaf_bson::ArrayBuf {
    sheaf_bson::ArrayBuf::build(|array| _ = array.push(x).push(y))
}

fn list(parts: &[sheaf_bson::ArrayBuf]) -> sheaf_bson::ArrayBuf {
    sheaf_bson::ArrayBuf::build(|array| parts.iter().for_each(|part| _ = array.push(part)))
}

/// A place, and how large something there is, from a grain to a continent.
fn place() -> impl Strategy<Value = (f64, f64, f64)> {
    (-150.0..150.0f64, -70.0..70.0f64, -6..2i32).prop_map(|(x, y, size)| (x, y, 10f64.powi(size) / 2.0))
}

fn square(x: f64, y: f64, r: f64) -> sheaf_bson::ArrayBuf {
    list(
        &[[x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r], [x - r, y - r]]
            .map(|[x, y]| pair(x, y)),
    )
}

fn geometry((x, y, r): (f64, f64, f64)) -> impl Strategy<Value = DocBuf> {
    (0..4, place()).prop_map(move |(kind, (x2, y2, _))| match kind {
        0 => doc! { "x": x, "y": y },
        1 => point(x, y),
        2 => doc! { "type": "LineString", "coordinates": &list(&[pair(x, y), pair(x + r, y + r), pair(x2, y2)]) },
        _ => doc! { "type": "Polygon", "coordinates": &list(&[square(x, y, r)]) },
    })
}

/// A region about a place; most often it has what is there.
fn operand((x, y, r): (f64, f64, f64)) -> impl Strategy<Value = (Kind, DocBuf)> {
    (0..7, -10.0..10.0f64, -10.0..10.0f64).prop_map(move |(kind, dx, dy)| {
        let (x, y, r) = (x + dx * r.min(0.5), y + dy * r.min(0.5), r.min(2.0));
        let (wide, ring) = (r * 10.0, list(&[square(x, y, (r * 10.0).min(15.0))]));
        match kind {
            0 => (Kind::Within, doc! { "$box": &list(&[pair(x - wide, y - wide), pair(x + wide, y + wide)]) }),
            1 => {
                let parts = sheaf_bson::ArrayBuf::build(|array| _ = array.push(&pair(x, y)).push(wide));
                (Kind::Within, doc! { "$center": &parts })
            }
            2 => {
                let parts = sheaf_bson::ArrayBuf::build(|array| _ = array.push(&pair(x, y)).push(wide.to_radians()));
                (Kind::Within, doc! { "$centerSphere": &parts })
            }
            3 => (Kind::Within, doc! { "$polygon": &square(x, y, wide) }),
            4 => (Kind::Within, doc! { "$geometry": { "type": "Polygon", "coordinates": &ring } }),
            5 => (Kind::Intersects, doc! { "$geometry": { "type": "Polygon", "coordinates": &ring } }),
            _ => (
                Kind::Intersects,
                doc! { "$geometry": { "type": "LineString", "coordinates": &list(&[pair(x, y), pair(-x, -y)]) } },
            ),
        }
    })
}
