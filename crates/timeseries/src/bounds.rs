//! `control.min` and `control.max`: the least and the greatest value of each field of a bucket's measurements, field by field
//! where they are documents, element by element where they are arrays.

use std::cmp::Ordering;

use sheaf_bson::{DocWriter, Element, OwnedValue, RawDoc, Sink, Type, Value};

/// The least or the greatest of the values of one field.
#[derive(Debug)]
enum Bound {
    One(OwnedValue),
    Document(Vec<(String, Bound)>),
    Array(Vec<Bound>),
}

/// The bounds of all fields, on one side.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// How a value compares that replaces what is there.
    wanted: Ordering,
    fields: Vec<(String, Bound)>,
}

impl Bounds {
    pub(crate) fn least() -> Self {
        Bounds { wanted: Ordering::Less, fields: Vec::new() }
    }

    pub(crate) fn greatest() -> Self {
        Bounds { wanted: Ordering::Greater, fields: Vec::new() }
    }

    /// Takes over what a bucket has.
    pub(crate) fn take(&mut self, control: RawDoc<'_>) {
        self.fields = fields_of(control);
    }

    /// Takes a measurement's field in. `hint` is where the field probably stands.
    pub(crate) fn add(&mut self, hint: usize, field: &Element<'_>) {
        add_field(&mut self.fields, hint, field, self.wanted);
    }

    /// Takes a time in, where nothing is yet.
    pub(crate) fn begin(&mut self, key: &str, millis: i64) {
        self.fields.push((key.to_owned(), Bound::of(Value::DateTime(millis))));
    }

    pub(crate) fn write<S: Sink>(&self, out: &mut DocWriter<'_, S>) {
        for (key, bound) in &self.fields {
            bound.write(key, out);
        }
    }
}

fn fields_of(document: RawDoc<'_>) -> Vec<(String, Bound)> {
    document.iter().map(|field| (field.key().to_owned(), Bound::of(field.value()))).collect()
}

fn add_field(fields: &mut Vec<(String, Bound)>, hint: usize, field: &Element<'_>, wanted: Ordering) {
    let is_it = |(name, _): &(String, Bound)| name.as_bytes() == field.key_bytes();
    let at = match fields.get(hint) {
        Some(probable) if is_it(probable) => Some(hint),
        _ => fields.iter().position(is_it),
    };
    match at {
        Some(at) => fields[at].1.add(field, wanted),
        None => fields.push((field.key().to_owned(), Bound::of(field.value()))),
    }
}

/// The order of two values of a type that sensors measure in; `None` for other types and for NaN.
fn compare_measured(kind: Type, a: &[u8], b: &[u8]) -> Option<Ordering> {
    let long = |data: &[u8]| data.try_into().ok().map(i64::from_le_bytes);
    match kind {
        Type::Double => f64::from_bits(long(a)? as u64).partial_cmp(&f64::from_bits(long(b)? as u64)),
        Type::Int64 | Type::DateTime => Some(long(a)?.cmp(&long(b)?)),
        Type::Int32 => {
            let int = |data: &[u8]| data.try_into().ok().map(i32::from_le_bytes);
            Some(int(a)?.cmp(&int(b)?))
        }
        _ => None,
    }
}

impl Bound {
    fn of(value: Value<'_>) -> Bound {
        match value {
            Value::Document(document) => Bound::Document(fields_of(document)),
            Value::Array(array) => Bound::Array(array.values().map(Bound::of).collect()),
            other => Bound::One(OwnedValue::from(other)),
        }
    }

    fn add(&mut self, field: &Element<'_>, wanted: Ordering) {
        if let Bound::One(one) = self
            && one.kind() == field.kind()
            && let Some(order) = compare_measured(one.kind(), field.data(), one.data())
        {
            if order == wanted {
                *one = OwnedValue::from(field.value());
            }
            return;
        }
        match (&mut *self, field.value()) {
            (Bound::Document(fields), Value::Document(document)) => {
                for (at, field) in document.iter().enumerate() {
                    add_field(fields, at, &field, wanted);
                }
            }
            (Bound::Array(elements), Value::Array(array)) => {
                for (at, element) in array.iter().enumerate() {
                    match elements.get_mut(at) {
                        Some(bound) => bound.add(&element, wanted),
                        None => elements.push(Bound::of(element.value())),
                    }
                }
            }
            (Bound::One(one), value) if !matches!(value, Value::Document(_) | Value::Array(_)) => {
                if sheaf_bson::compare(value, one.as_value()) == wanted {
                    *one = OwnedValue::from(value);
                }
            }
            // Of different kinds: the kinds' order decides.
            (bound, value) => {
                if value.kind().order().cmp(&bound.order()) == wanted {
                    *self = Bound::of(value);
                }
            }
        }
    }

    fn order(&self) -> u8 {
        match self {
            Bound::One(one) => one.kind().order(),
            Bound::Document(_) => Type::Document.order(),
            Bound::Array(_) => Type::Array.order(),
        }
    }

    fn write<S: Sink>(&self, key: &str, out: &mut DocWriter<'_, S>) {
        match self {
            Bound::One(one) => _ = out.append(key, one.as_value()),
            Bound::Document(fields) => {
                let mut inner = out.document(key);
                for (key, bound) in fields {
                    bound.write(key, &mut inner);
                }
            }
            Bound::Array(elements) => {
                let document = sheaf_bson::DocBuf::build(|inner| {
                    for (at, bound) in elements.iter().enumerate() {
                        bound.write(&at.to_string(), inner);
                    }
                });
                out.append(key, Value::Array(document.as_raw()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::{DocBuf, doc};

    use super::*;

    fn bounds(docs: &[DocBuf]) -> (DocBuf, DocBuf) {
        let (mut min, mut max) = (Bounds::least(), Bounds::greatest());
        for doc in docs {
            for (at, field) in doc.as_raw().iter().enumerate() {
                min.add(at, &field);
                max.add(at, &field);
            }
        }
        (DocBuf::build(|out| min.write(out)), DocBuf::build(|out| max.write(out)))
    }

    #[test]
    fn field_by_field() {
        let (min, max) =
            bounds(&[doc! { "a": { "x": 1, "y": 5 }, "b": [1, 9] }, doc! { "b": [3, 2], "a": { "x": 3 } }]);
        assert_eq!(min, doc! { "a": { "x": 1, "y": 5 }, "b": [1, 2] });
        assert_eq!(max, doc! { "a": { "x": 3, "y": 5 }, "b": [3, 9] });
    }

    #[test]
    fn kinds_have_an_order() {
        let (min, max) = bounds(&[doc! { "a": { "x": 1 } }, doc! { "a": 7 }, doc! { "a": [1] }]);
        assert_eq!((min, max), (doc! { "a": 7 }, doc! { "a": [1] }));
    }
}
